package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/walrig/walrig/host/catalog"
	"github.com/walrig/walrig/sdk/client"
	"github.com/walrig/walrig/sdk/walimpls"
)

func TestCreateIsRefusedTwiceAndIdempotentOnDemand(t *testing.T) {
	h := newHost(t, Options{}, newPlugin(t, "local"), newPlugin(t, "other"))
	c, ctx := h.create("orders"), testContext(t)
	_, _, err := c.CreateChannel(ctx, "orders", client.CreateOptions{})
	mustBe(t, err, walimpls.ErrAlreadyExists)
	st, created, err := c.CreateChannel(ctx, "orders", client.CreateOptions{IfNotExists: true, Plugin: "local"})
	must(t, err)
	if created || st.GetName() != "orders" || st.GetState() != "available" || st.GetTerm() != 1 {
		t.Errorf("created %v, %v", created, st)
	}
	_, _, err = c.CreateChannel(ctx, "orders", client.CreateOptions{IfNotExists: true, Plugin: "other"})
	mustBe(t, err, walimpls.ErrAlreadyExists)

	_, _, err = c.CreateChannel(ctx, "bad name", client.CreateOptions{})
	mustBe(t, err, walimpls.ErrInvalidArgument)
	_, _, err = c.CreateChannel(ctx, "x", client.CreateOptions{Plugin: "nope"})
	mustBe(t, err, walimpls.ErrNotFound)
	_, _, err = c.CreateChannel(ctx, "x", client.CreateOptions{Term: 3})
	mustBe(t, err, walimpls.ErrInvalidArgument)
	_, _, err = c.CreateChannel(ctx, "x", client.CreateOptions{Adopt: true})
	mustBe(t, err, walimpls.ErrNotFound)
	list, err := c.ListChannels(ctx)
	must(t, err)
	if len(list) != 1 || list[0].GetName() != "orders" {
		t.Errorf("list %v", list)
	}
}

func TestCreatedAtTheSameTimeIsCreatedOnce(t *testing.T) {
	h := newHost(t, Options{})
	c, ctx := h.client(), testContext(t)
	results := make(chan bool, 8)
	for range cap(results) {
		go func() {
			_, created, err := c.CreateChannel(ctx, "orders", client.CreateOptions{IfNotExists: true})
			if err != nil {
				t.Error(err)
			}
			results <- created
		}()
	}
	n := 0
	for range cap(results) {
		if <-results {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d calls created the channel", n)
	}
}

// leaveLog writes a log with the given highest term into a plugin's store,
// behind the host's back.
func leaveLog(t testing.TB, p *fakePlugin, channel string, term int64) {
	t.Helper()
	ctx := testContext(t)
	w, err := p.Opener.Open(ctx, walimpls.OpenOptions{Channel: channel, Term: term, Incarnation: 1, Access: walimpls.AccessReadWrite})
	must(t, err)
	must(t, w.Close(ctx))
}

func TestLogThatTheCatalogDoesNotKnowNeedsAdopt(t *testing.T) {
	h := newHost(t, Options{})
	leaveLog(t, h.plugin(), "orders", 7)
	c, ctx := h.client(), testContext(t)
	_, _, err := c.CreateChannel(ctx, "orders", client.CreateOptions{})
	if !errors.Is(err, walimpls.ErrForeignStore) || !strings.Contains(hint(err), "--adopt") {
		t.Fatalf("got %v (hint %q)", err, hint(err))
	}
	if _, err := c.DescribeChannel(ctx, "orders"); !errors.Is(err, walimpls.ErrNotFound) {
		t.Errorf("the refused channel is there: %v", err)
	}
	st, _, err := c.CreateChannel(ctx, "orders", client.CreateOptions{Adopt: true})
	must(t, err)
	if st.GetTerm() != 8 || st.GetState() != "available" {
		t.Errorf("adopted as %v, want term 8", st)
	}
}

// TestRestartTakesTheNextTerm also when the log has seen a higher term than the
// catalog.
func TestRestartTakesTheNextTerm(t *testing.T) {
	h := newHost(t, Options{})
	c, ctx := h.create("orders"), testContext(t)
	appendAll(t, c, "orders", "1")
	h.restart()
	appendAll(t, c, "orders", "2")
	h.stop()
	leaveLog(t, h.plugin(), "orders", 40)
	h.start(h.addr)
	h.awaitReady()
	appendAll(t, c, "orders", "3")
	st, err := c.DescribeChannel(ctx, "orders")
	must(t, err)
	if st.GetTerm() != 41 {
		t.Errorf("term %d, want one above the log's 40", st.GetTerm())
	}
	msgs, err := tryRead(t, c, "orders", client.ReadOptions{})
	must(t, err)
	var got []string
	for _, m := range msgs {
		got = append(got, fmt.Sprintf("%s@%d", m.Payload, m.Term))
	}
	if !slices.Equal(got, []string{"1@1", "2@2", "3@41"}) {
		t.Errorf("read %v", got)
	}
}

func TestRemovedChannelKeepsItsLogUnlessPurged(t *testing.T) {
	h := newHost(t, Options{})
	c, ctx := h.create("orders"), testContext(t)
	appendAll(t, c, "orders", "kept")
	must(t, c.RemoveChannel(ctx, "orders", false))
	mustBe(t, c.RemoveChannel(ctx, "orders", false), walimpls.ErrNotFound)
	if _, err := c.Append(ctx, "orders", texts("x")...); !errors.Is(err, walimpls.ErrNotFound) {
		t.Errorf("append to a removed channel: %v", err)
	}
	_, _, err := c.CreateChannel(ctx, "orders", client.CreateOptions{})
	mustBe(t, err, walimpls.ErrForeignStore)
	_, _, err = c.CreateChannel(ctx, "orders", client.CreateOptions{Adopt: true})
	must(t, err)
	if got := readAll(t, c, "orders", client.ReadOptions{}); !slices.Equal(got, []string{"kept"}) {
		t.Errorf("adopted: read %q", got)
	}
	must(t, c.RemoveChannel(ctx, "orders", true))
	st, _, err := c.CreateChannel(ctx, "orders", client.CreateOptions{})
	must(t, err)
	if st.GetTerm() != 1 {
		t.Errorf("a new log begins at term %d", st.GetTerm())
	}
	if got := readAll(t, c, "orders", client.ReadOptions{}); len(got) > 0 {
		t.Errorf("purged: read %q", got)
	}
}

// TestChannelOfAnotherStoreIsRefusedAlone is M-22: the plugin gets another
// store, and then its first one back.
func TestChannelOfAnotherStoreIsRefusedAlone(t *testing.T) {
	a, b, side := newPlugin(t, "local"), newPlugin(t, "local"), newPlugin(t, "side")
	h := newHost(t, Options{}, a, side)
	c, ctx := h.create("orders"), testContext(t)
	_, _, err := c.CreateChannel(ctx, "other", client.CreateOptions{Plugin: "side"})
	must(t, err)
	appendAll(t, c, "orders", "a1", "a2")
	h.stop()
	row, err := h.catalog.Get(ctx, "orders")
	must(t, err)

	foreign := func(what string) {
		t.Helper()
		h.start(h.addr)
		h.awaitReady()
		for name, call := range map[string]func() error{
			"append": func() error { _, err := c.Append(ctx, "orders", texts("x")...); return err },
			"read":   func() error { _, err := c.NewReader(ctx, "orders", client.ReadOptions{}); return err },
			"purge":  func() error { return c.RemoveChannel(ctx, "orders", true) },
		} {
			if err := call(); !errors.Is(err, walimpls.ErrForeignStore) && !(name == "purge" && what == "no log") {
				t.Errorf("%s, %s: %v", what, name, err)
			}
		}
		appendAll(t, c, "other", what)
		if now, err := h.catalog.Get(ctx, "orders"); err != nil || fmt.Sprint(now) != fmt.Sprint(row) {
			t.Errorf("%s: the row was %v and is %v", what, row, now)
		}
		h.stop()
	}
	leaveLog(t, b, "orders", 3)
	h.plugins[0] = b
	foreign("another log")

	h.plugins[0] = a
	h.start(h.addr)
	h.awaitReady()
	appendAll(t, c, "orders", "a3")
	if got := readAll(t, c, "orders", client.ReadOptions{}); !slices.Equal(got, []string{"a1", "a2", "a3"}) {
		t.Errorf("back at home: read %q", got)
	}
	h.stop()

	// The documented step: take the log that is there.
	h.plugins[0] = b
	h.start(h.addr)
	st, err := c.OpenChannel(ctx, "orders", 0, true)
	must(t, err)
	if st.GetState() != "available" {
		t.Errorf("adopted: %v", st)
	}
	appendAll(t, c, "orders", "b1")
	if got := readAll(t, c, "orders", client.ReadOptions{}); !slices.Equal(got, []string{"b1"}) {
		t.Errorf("adopted: read %q", got)
	}
}

func TestChannelOfAnotherBackendIsRefused(t *testing.T) {
	h := newHost(t, Options{})
	c := h.create("orders")
	h.stop()
	h.plugin().desc.Backend = "kafka"
	h.start(h.addr)
	h.awaitReady()
	_, err := c.Append(testContext(t), "orders", texts("x")...)
	if !errors.Is(err, walimpls.ErrForeignStore) || !strings.Contains(err.Error(), "kafka") {
		t.Errorf("got %v", err)
	}
}

// TestFailedChannelWorksAfterCorrection is S-03: a broken plugin costs its own
// channels, says why, and works again without a restart of the host.
func TestFailedChannelWorksAfterCorrection(t *testing.T) {
	x, y := newPlugin(t, "x"), newPlugin(t, "y")
	h := newHost(t, Options{}, x, y)
	c, ctx := h.create("on-x"), testContext(t)
	_, _, err := c.CreateChannel(ctx, "on-y", client.CreateOptions{Plugin: "y"})
	must(t, err)
	h.stop()
	x.breaks(walimpls.Errorf(walimpls.CodePluginStart, "", "exec: /nowhere: no such file"), nil)
	h.start(h.addr)
	h.awaitReady()
	appendAll(t, c, "on-y", "works")
	_, err = c.Append(ctx, "on-x", texts("x")...)
	if !errors.Is(err, walimpls.ErrPluginStart) || !strings.Contains(err.Error(), "/nowhere") {
		t.Errorf("append through a broken plugin: %v", err)
	}
	_, _, err = c.CreateChannel(ctx, "new", client.CreateOptions{Plugin: "x"})
	mustBe(t, err, walimpls.ErrPluginStart)
	st, err := c.DescribeChannel(ctx, "on-x")
	must(t, err)
	if st.GetState() != "unavailable" || st.GetError().GetCode() != "plugin_start" {
		t.Errorf("status %v", st)
	}
	x.breaks(nil, nil)
	until(t, "the channel is open again", func() bool {
		_, err := c.Append(ctx, "on-x", texts("again")...)
		return err == nil
	})
}

// TestDefiniteFailureWaitsForAnOrder does not retry what will not pass, and
// tries again when it is told to.
func TestDefiniteFailureWaitsForAnOrder(t *testing.T) {
	h := newHost(t, Options{})
	c, ctx := h.create("orders"), testContext(t)
	h.stop()
	h.plugin().rules(t, `open error corrupt "bad block"`)
	h.start(h.addr)
	h.awaitReady()
	_, err := c.Append(ctx, "orders", texts("x")...)
	mustBe(t, err, walimpls.ErrCorrupt)
	_, err = c.OpenChannel(ctx, "orders", 0, false)
	mustBe(t, err, walimpls.ErrCorrupt)
	h.plugin().rules(t, "")
	st, err := c.OpenChannel(ctx, "orders", 0, false)
	must(t, err)
	if st.GetState() != "available" {
		t.Errorf("status %v", st)
	}
	appendAll(t, c, "orders", "works")
}

// TestFailedCreateSaysThatTheChannelIsThere breaks the open that follows.
func TestFailedCreateSaysThatTheChannelIsThere(t *testing.T) {
	h := newHost(t, Options{})
	c, ctx := h.client(), testContext(t)
	h.plugin().rules(t, `open error corrupt "bad block" after=1 count=1`)
	_, _, err := c.CreateChannel(ctx, "orders", client.CreateOptions{})
	if !errors.Is(err, walimpls.ErrCorrupt) || !strings.Contains(err.Error(), "was created") {
		t.Fatalf("got %v", err)
	}
	must(t, second(c.OpenChannel(ctx, "orders", 0, false)))
	appendAll(t, c, "orders", "works")
}

func second[T any](_ T, err error) error { return err }

func TestPluginThatHangsKeepsOnlyItsOwnChannelsWaiting(t *testing.T) {
	x, y := newPlugin(t, "x"), newPlugin(t, "y")
	h := newHost(t, Options{ReportAfter: 50 * time.Millisecond, ParallelOpens: 2}, x, y)
	ctx := testContext(t)
	for i := range 6 {
		must(t, h.catalog.Create(ctx, catalog.Row{Channel: fmt.Sprint("x", i), Plugin: "x", Backend: "fault"}))
	}
	must(t, h.catalog.Create(ctx, catalog.Row{Channel: "yy", Plugin: "y", Backend: "fault"}))
	h.stop()
	x.rules(t, "open block until released")
	h.start(h.addr)
	h.awaitReady()
	c := h.client()
	appendAll(t, c, "yy", "works")
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err := c.Append(short, "x0", texts("x")...)
	mustBe(t, err, walimpls.ErrTimeout)
	st, err := c.DescribeChannel(ctx, "x5")
	must(t, err)
	if st.GetState() != "opening" {
		t.Errorf("status %v", st)
	}
	x.rules(t, "")
	for i := range 6 {
		appendAll(t, c, fmt.Sprint("x", i), "works")
	}
}

func TestChannelOfAPluginThatIsNotConfiguredSaysSo(t *testing.T) {
	h := newHost(t, Options{}, newPlugin(t, "local"), newPlugin(t, "gone"))
	c, ctx := h.create("orders"), testContext(t)
	_, _, err := c.CreateChannel(ctx, "lost", client.CreateOptions{Plugin: "gone"})
	must(t, err)
	h.stop()
	h.plugins = h.plugins[:1]
	h.start(h.addr)
	h.awaitReady()
	_, err = c.Append(ctx, "lost", texts("x")...)
	if !errors.Is(err, walimpls.ErrConfig) || !strings.Contains(err.Error(), "gone") {
		t.Errorf("got %v", err)
	}
	mustBe(t, c.RemoveChannel(ctx, "lost", true), walimpls.ErrConfig)
	must(t, c.RemoveChannel(ctx, "lost", false))
}

func TestStandaloneClosesNoChannels(t *testing.T) {
	h := newHost(t, Options{})
	c, ctx := h.create("orders"), testContext(t)
	mustBe(t, c.CloseChannel(ctx, "orders", 1), walimpls.ErrUnsupported)
	_, err := c.OpenChannel(ctx, "orders", 5, false)
	mustBe(t, err, walimpls.ErrInvalidArgument)
	must(t, second(c.OpenChannel(ctx, "orders", 0, false)))
}

func TestStatusOfAHungBackendIsBounded(t *testing.T) {
	h := newHost(t, Options{Version: "v1", DataDir: "/data"})
	c, ctx := h.create("orders"), testContext(t)
	appendAll(t, c, "orders", "1")
	h.plugin().rules(t, "bounds block until released")
	h.awaitReady()
	begin := time.Now()
	st, err := c.Status(ctx)
	must(t, err)
	if took := time.Since(begin); took > 5*boundsTimeout {
		t.Errorf("took %s", took)
	}
	if !st.GetReady() || st.GetVersion() != "v1" || st.GetDataDir() != "/data" || st.GetAddr() != h.addr || st.GetMode() != "standalone" ||
		len(st.GetPlugins()) != 1 || len(st.GetChannels()) != 1 || st.GetChannels()[0].GetLatestId() != "" {
		t.Errorf("status %v", st)
	}
	h.plugin().rules(t, "")
	st, err = c.Status(ctx)
	must(t, err)
	if st.GetChannels()[0].GetLatestId() == "" {
		t.Errorf("status %v", st)
	}
}

func TestPluginCalls(t *testing.T) {
	h := newHost(t, Options{})
	c, ctx := h.client(), testContext(t)
	list, err := c.ListPlugins(ctx)
	must(t, err)
	if len(list) != 1 || list[0].GetName() != "local" {
		t.Errorf("list %v", list)
	}
	desc, err := c.DescribePlugin(ctx, "local")
	must(t, err)
	if !strings.Contains(desc.GetDescriptionJson(), `"id_layout":"u64"`) {
		t.Errorf("description %s", desc.GetDescriptionJson())
	}
	_, err = c.DescribePlugin(ctx, "nope")
	mustBe(t, err, walimpls.ErrNotFound)
	_, err = c.VerifyPlugin(ctx, "local")
	mustBe(t, err, walimpls.ErrUnsupported)
}
