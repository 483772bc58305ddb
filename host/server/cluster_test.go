package server

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/walrig/walrig/conformance/faultbackend"
	"github.com/walrig/walrig/sdk/client"
	"github.com/walrig/walrig/sdk/walimpls"
)

func TestClusterOpensOnlyWithAGivenTerm(t *testing.T) {
	h := newHost(t, Options{Mode: Cluster})
	h.awaitReady()
	c, ctx := h.client(), testContext(t)
	st, _, err := c.CreateChannel(ctx, "orders", client.CreateOptions{})
	must(t, err)
	if st.GetState() != "unavailable" || st.GetTerm() != 0 {
		t.Errorf("created as %v", st)
	}
	notOpen := func() {
		t.Helper()
		_, err := c.Append(ctx, "orders", texts("x")...)
		if !errors.Is(err, walimpls.ErrUnavailable) || !strings.Contains(hint(err), "--term") {
			t.Errorf("append while closed: %v (hint %q)", err, hint(err))
		}
		_, err = c.NewAppender(ctx, "orders", client.AppenderOptions{})
		mustBe(t, err, walimpls.ErrUnavailable)
	}
	notOpen()
	_, err = c.OpenChannel(ctx, "orders", 0, false)
	mustBe(t, err, walimpls.ErrInvalidArgument)
	st, err = c.OpenChannel(ctx, "orders", 3, false)
	must(t, err)
	if st.GetState() != "available" || st.GetTerm() != 3 {
		t.Errorf("opened as %v", st)
	}
	appendAll(t, c, "orders", "3")
	must(t, second(c.OpenChannel(ctx, "orders", 3, false))) // joins
	_, err = c.OpenChannel(ctx, "orders", 2, false)
	mustBe(t, err, walimpls.ErrTermExpired)
	appendAll(t, c, "orders", "still 3")
	must(t, second(c.OpenChannel(ctx, "orders", 5, false)))
	appendAll(t, c, "orders", "5")
	mustBe(t, c.CloseChannel(ctx, "orders", 4), walimpls.ErrTermExpired)
	mustBe(t, c.CloseChannel(ctx, "orders", 0), walimpls.ErrInvalidArgument)
	must(t, c.CloseChannel(ctx, "orders", 5))
	notOpen()
	_, err = c.OpenChannel(ctx, "orders", 5, false)
	mustBe(t, err, walimpls.ErrTermExpired)
	notOpen()

	h.restart()
	h.awaitReady()
	notOpen()
	must(t, second(c.OpenChannel(ctx, "orders", 6, false)))
	if got := readAll(t, c, "orders", client.ReadOptions{}); !slices.Equal(got, []string{"3", "still 3", "5"}) {
		t.Errorf("read %q", got)
	}
	must(t, c.RemoveChannel(ctx, "orders", true))
	st, _, err = c.CreateChannel(ctx, "orders", client.CreateOptions{Term: 1})
	must(t, err)
	if st.GetState() != "available" || st.GetTerm() != 1 {
		t.Errorf("created with a term as %v", st)
	}
}

// TestClusterOpenGoesOnWithoutItsCaller also when another order overtakes it.
func TestClusterOpenGoesOnWithoutItsCaller(t *testing.T) {
	h := newHost(t, Options{Mode: Cluster})
	c, ctx := h.client(), testContext(t)
	_, _, err := c.CreateChannel(ctx, "orders", client.CreateOptions{})
	must(t, err)
	h.plugin().rules(t, "open block until released term=1")
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	_, err = c.OpenChannel(short, "orders", 1, false)
	if !errors.Is(err, walimpls.ErrTimeout) && !errors.Is(err, walimpls.ErrUnknownOutcome) {
		t.Errorf("the caller that left: %v", err)
	}
	must(t, h.plugin().ctl.WaitFor(ctx, func(s faultbackend.Stats) bool { return s.Waiting["open"] > 0 }))
	appended := make(chan error, 1)
	go func() { _, err := c.Append(ctx, "orders", texts("waits")...); appended <- err }()
	must(t, second(c.OpenChannel(ctx, "orders", 2, false)))
	must(t, <-appended)
	st, err := c.DescribeChannel(ctx, "orders")
	must(t, err)
	if st.GetState() != "available" || st.GetTerm() != 2 {
		t.Errorf("status %v", st)
	}
}

// TestClusterOwnerThatIsTakenOverSaysSo opens the log behind the host's back.
func TestClusterOwnerThatIsTakenOverSaysSo(t *testing.T) {
	h := newHost(t, Options{Mode: Cluster})
	c, ctx := h.client(), testContext(t)
	_, _, err := c.CreateChannel(ctx, "orders", client.CreateOptions{Term: 1})
	must(t, err)
	leaveLog(t, h.plugin(), "orders", 9)
	until(t, "the host has noticed", func() bool {
		_, err := c.Append(ctx, "orders", texts("x")...)
		return errors.Is(err, walimpls.ErrTermExpired)
	})
	st, err := c.DescribeChannel(ctx, "orders")
	must(t, err)
	if st.GetState() != "unavailable" || st.GetError().GetCode() != "term_expired" {
		t.Errorf("status %v", st)
	}
	must(t, second(c.OpenChannel(ctx, "orders", 10, false)))
	appendAll(t, c, "orders", "back")
}

func TestStandaloneOwnerThatIsTakenOverDoesNotFightBack(t *testing.T) {
	h := newHost(t, Options{})
	c, ctx := h.create("orders"), testContext(t)
	leaveLog(t, h.plugin(), "orders", 9)
	until(t, "the host has noticed", func() bool {
		_, err := c.Append(ctx, "orders", texts("x")...)
		return errors.Is(err, walimpls.ErrTermExpired)
	})
	// An order does.
	st, err := c.OpenChannel(ctx, "orders", 0, false)
	must(t, err)
	if st.GetTerm() != 10 {
		t.Errorf("opened as %v", st)
	}
	appendAll(t, c, "orders", "back")
}
