package conformance

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

var lifecycleChecks = []check{
	{Clause: "WAL-LIFE-001", Name: "description", Run: checkDescription},
	{Clause: "WAL-LIFE-002", Name: "unknown-key", Configures: true, Run: checkUnknownKey},
	{Clause: "WAL-LIFE-003", Name: "create", Run: checkOpenCreates},
	{Clause: "WAL-LIFE-004", Name: "fence-record", Run: checkFenceRecord},
	{Clause: "WAL-LIFE-005", Name: "bad-options", Run: checkBadOpenOptions},
	{Clause: "WAL-LIFE-005", Name: "odd-names", Run: checkOddNames},
	{Clause: "WAL-LIFE-006", Name: "next-incarnation", Run: checkIncarnationZero},
	{Clause: "WAL-LIFE-007", Name: "separate", Run: checkChannelsAreSeparate},
	{Clause: "WAL-LIFE-008", Name: "close", Run: checkCloseIsIdempotent},
	{Clause: "WAL-LIFE-009", Name: "scanners", Run: checkCloseEndsScanners},
	{Clause: "WAL-LIFE-010", Name: "during-appends", Run: checkCloseDuringAppends},
	{Clause: "WAL-LIFE-011", Name: "reopen", Run: checkReopen},
	{Clause: "WAL-LIFE-012", Name: "opener", Alone: true, Run: checkOpenerClose},
	{Clause: "WAL-LIFE-013", Name: "ended-context", Run: checkOpenWithEndedContext},
}

func checkDescription(t *T) {
	for range 3 {
		var d walimpls.Description
		err := t.call(t.ctx, t.run.opt.Bound, "Describe()", func(ctx context.Context) (string, error) {
			var err error
			d, err = t.opener().Description(ctx)
			return d.Backend + " " + d.Version, err
		})
		t.expect(err == nil, "the description is returned; got %v", err)
		t.expect(d.Validate() == nil, "the description is valid; got %v", d.Validate())
		t.expect(reflect.DeepEqual(d, t.description()), "the description is the same at every call; got %+v after %+v", d, t.description())
	}
}

func checkUnknownKey(t *T) {
	const key = "no_such_key_of_any_backend"
	err := t.call(t.ctx, t.run.opt.Bound, "configure with the unknown key "+key, func(ctx context.Context) (string, error) {
		return "accepted", t.run.target.(ConfigChecker).CheckConfig(ctx, walimpls.Config{key: "x"})
	})
	t.expect(err != nil, "a configuration with an unknown key is refused; it was accepted")
	t.expect(errors.Is(err, walimpls.ErrInvalidArgument), "the refusal is ErrInvalidArgument; got %v", err)
	t.expect(strings.Contains(err.Error(), key), "the refusal names the key %q; got %v", key, err)
}

func checkOpenCreates(t *T) {
	c := t.channel()
	h := t.open(c, 7, 3)
	want := walimpls.Pair{Term: 7, Incarnation: 3}
	t.expect(h.ch.Name == c && h.ch.Pair == want && h.ch.Access == walimpls.AccessReadWrite,
		"Channel is %s %s read-write; got %s %s %s", c, want, h.ch.Name, h.ch.Pair, h.ch.Access)
	t.expectStoreID(h.ch.StoreID)
	other := t.open(t.channel(), 1, 1)
	t.expect(other.ch.StoreID != h.ch.StoreID, "two logs have two store ids; both have %q", h.ch.StoreID)
}

func (t *T) expectStoreID(id string) {
	ok := len(id) >= 1 && len(id) <= 200
	for i := 0; i < len(id); i++ {
		ok = ok && id[i] >= 0x20 && id[i] < 0x7f
	}
	t.expect(ok, "the store id is 1 to 200 printable ASCII characters; got %q", shorten(id))
}

func checkFenceRecord(t *T) {
	c := t.channel()
	var want []walimpls.Pair
	for i, p := range []walimpls.Pair{{Term: 1, Incarnation: 1}, {Term: 1, Incarnation: 2}, {Term: 4, Incarnation: 1}} {
		h := t.open(c, p.Term, p.Incarnation)
		want = append(want, p)
		got := h.log()
		var fences []walimpls.Pair
		for k := range got {
			m := &got[k]
			if m.Type != message.TypeFence {
				continue
			}
			fences = append(fences, walimpls.Pair{Term: m.Term, Incarnation: m.Incarnation})
			nothing := len(m.Payload) == 0 && len(m.Properties) == 0 && m.TimeTick == 0 && m.TxnID == 0 && m.VChannel == "" && m.LastConfirmed == ""
			t.expect(nothing, "a fence record carries its pair and nothing else; got %+v", *m)
		}
		t.expect(reflect.DeepEqual(fences, want), "after %d opens the log holds the fence records %v; got %v", i+1, want, fences)
		h.close()
	}
}

func checkBadOpenOptions(t *T) {
	c := t.channel()
	rw := walimpls.AccessReadWrite
	for _, bad := range []walimpls.OpenOptions{
		{Channel: "", Term: 1, Incarnation: 1, Access: rw},
		{Channel: ".hidden", Term: 1, Incarnation: 1, Access: rw},
		{Channel: "../" + c, Term: 1, Incarnation: 1, Access: rw},
		{Channel: c + "/x", Term: 1, Incarnation: 1, Access: rw},
		{Channel: c + " x", Term: 1, Incarnation: 1, Access: rw},
		{Channel: c + "é", Term: 1, Incarnation: 1, Access: rw},
		{Channel: c + "\x00", Term: 1, Incarnation: 1, Access: rw},
		{Channel: "a" + strings.Repeat("b", 200), Term: 1, Incarnation: 1, Access: rw},
		{Channel: c, Term: 0, Incarnation: 1, Access: rw},
		{Channel: c, Term: -1, Incarnation: 1, Access: rw},
		{Channel: c, Term: 1, Incarnation: -1, Access: rw},
		{Channel: c, Term: 1, Incarnation: 1},
		{Channel: c, Term: 1, Incarnation: 1, Access: 3},
	} {
		_, err := t.tryOpenOn(t.ctx, t.opener(), bad)
		t.expect(errors.Is(err, walimpls.ErrInvalidArgument), "Open of channel %q, term %d, incarnation %d, %s is ErrInvalidArgument; got %v",
			shorten(bad.Channel), bad.Term, bad.Incarnation, bad.Access, err)
	}
	h := t.open(c, 1, 1)
	t.expect(len(withoutFences(h.log())) == 0, "what was refused left nothing behind")
}

func checkOddNames(t *T) {
	base := t.run.channelName()
	for _, name := range []string{
		base + strings.Repeat("x", 200-len(base)),
		base + "..",
		base + ".-_.",
		base + ".log",
		"9" + base,
		base + "-con.aux",
	} {
		t.own(name, 1)
		h := t.open(name, 1, 1)
		h.append(data(name))
		t.expectLog(h.messages(), []message.Message{data(name)}, nil, "the log of "+name)
		h.close()
	}
}

func checkIncarnationZero(t *T) {
	c := t.channel()
	for i, step := range []struct{ term, asked, want int64 }{
		{2, 0, 1}, {2, 0, 2}, {2, 7, 7}, {2, 0, 8}, {3, 0, 1},
	} {
		h := t.open(c, step.term, step.asked)
		t.expect(h.ch.Pair == walimpls.Pair{Term: step.term, Incarnation: step.want},
			"open %d: term %d incarnation %d opens as %d.%d; got %s", i+1, step.term, step.asked, step.term, step.want, h.ch.Pair)
		h.close()
	}
}

func checkChannelsAreSeparate(t *T) {
	base := t.channel()
	names := []string{base}
	for _, suffix := range []string{".", "-", "_", ".1", "0", "A", "a", ".a", "-data"} {
		t.own(base+suffix, 1)
		names = append(names, base+suffix)
	}
	handles := make([]*handle, len(names))
	for i, n := range names {
		handles[i] = t.open(n, 1, 1)
	}
	for round := range 3 {
		for i, h := range handles {
			h.append(data(fmt.Sprintf("%s %d", names[i], round)))
		}
	}
	for i, h := range handles {
		var want []message.Message
		for round := range 3 {
			want = append(want, data(fmt.Sprintf("%s %d", names[i], round)))
		}
		t.expectLog(h.messages(), want, nil, "channel "+names[i])
	}
}

func checkCloseIsIdempotent(t *T) {
	c := t.channel()
	h := t.open(c, 1, 1)
	id := h.append(data("one"))[0]
	for i := range 3 {
		err := h.tryClose()
		t.expect(err == nil, "Close number %d succeeds; got %v", i+1, err)
	}
	_, err := h.tryAppend(t.ctx, data("late"))
	t.expect(errors.Is(err, walimpls.ErrClosed), "Append on a closed handle is ErrClosed; got %v", err)
	t.expectNotStored(err, 1, "Append on a closed handle")
	_, err = h.tryRead(walimpls.ReadOptions{Start: walimpls.FromAll()})
	t.expect(errors.Is(err, walimpls.ErrClosed), "Read on a closed handle is ErrClosed; got %v", err)
	_, err = h.tryBounds()
	t.expect(errors.Is(err, walimpls.ErrClosed), "Bounds on a closed handle is ErrClosed; got %v", err)
	if t.claimed(CapTruncation) {
		err = h.tryTruncate(id)
		t.expect(errors.Is(err, walimpls.ErrClosed), "Truncate on a closed handle is ErrClosed; got %v", err)
	}
	t.expect(h.wal.Channel().Name == c, "Channel goes on working on a closed handle")
}

func checkCloseEndsScanners(t *T) {
	h := t.open(t.channel(), 1, 1)
	h.append(series("m", 10)...)
	blocked := h.read(walimpls.FromLatest())
	fresh := h.read(walimpls.FromAll())
	waiting := t.start(func() {
		_, err := blocked.next(t.ctx, t.run.opt.Bound)
		t.expect(errors.Is(err, walimpls.ErrClosed), "a Next that was blocked when its handle was closed is ErrClosed; got %v", err)
	})
	t.pause(t.quiet / 3)
	h.close()
	waiting.wait()
	for range 12 { // it may hold what it has read ahead
		if _, err := fresh.next(t.ctx, t.run.opt.Bound); err != nil {
			t.expect(errors.Is(err, walimpls.ErrClosed), "Next of a scanner whose handle was closed is ErrClosed; got %v", err)
			return
		}
	}
	t.fatalf("a scanner of a closed handle ends with ErrClosed; it went on")
}

func checkCloseDuringAppends(t *T) {
	c := t.channel()
	o := newOracle(t)
	for round := range 4 {
		h := t.open(c, int64(round+1), 1)
		writers := t.start(func() {
			t.parallel(4, func(w int) {
				for i := 0; ; i++ {
					if !o.append(t.ctx, h, fmt.Sprintf("%d-%d-%d", round, w, i)) {
						return
					}
				}
			})
		})
		t.pause(t.duration(t.quiet / 4))
		h.close()
		writers.wait()
	}
	o.verify(t.open(c, 9, 1).messages())
}

func checkReopen(t *T) {
	c := t.channel()
	var want []message.Message
	var ids []message.ID
	store := ""
	for round := range 8 {
		h := t.open(c, int64(1+round/3), int64(1+round%3))
		if store == "" {
			store = h.ch.StoreID
		}
		t.expect(h.ch.StoreID == store, "the log has the store id %q at each open; got %q", store, h.ch.StoreID)
		for _, m := range series(fmt.Sprint("r", round), round%4+1) {
			want = append(want, m)
			ids = append(ids, h.append(m)...)
		}
		h.close()
	}
	h := t.open(c, 99, 1)
	t.expectLog(h.messages(), want, ids, "the log after 8 opens and closes")
}

func checkOpenerClose(t *T) {
	c := t.channel()
	h := t.open(c, 1, 1)
	h.append(data("one"))
	s := h.read(walimpls.FromLatest())
	waiting := t.start(func() {
		_, err := s.next(t.ctx, t.run.opt.Bound)
		t.expect(err != nil && !isContext(err), "a Next that was blocked when the opener was closed ends with an error; got %v", err)
	})
	inst := t.opener()
	for i := range 2 {
		err := t.call(t.ctx, t.run.opt.closeBound(), fmt.Sprintf("Close of the opener, number %d", i+1), func(ctx context.Context) (string, error) {
			return "ok", inst.Close(ctx)
		})
		t.expect(err == nil, "Close of the opener, number %d, succeeds; got %v", i+1, err)
	}
	waiting.wait()
	_, err := h.tryAppend(t.ctx, data("late"))
	t.expect(err != nil, "Append after the Close of the opener fails; it succeeded")
	_, err = t.tryOpenOn(t.ctx, inst, walimpls.OpenOptions{Channel: c, Term: 2, Incarnation: 1, Access: walimpls.AccessReadWrite})
	t.expect(errors.Is(err, walimpls.ErrClosed) || t.run.report.Target.Kind == "plugin" && err != nil, "Open after the Close of the opener is ErrClosed; got %v", err)
	t.stop()
	t.restart()
}

func checkOpenWithEndedContext(t *T) {
	ctx, cancel := context.WithCancel(t.ctx)
	cancel()
	c := t.channel()
	_, err := t.tryOpenOn(ctx, t.opener(), walimpls.OpenOptions{Channel: c, Term: 1, Incarnation: 1, Access: walimpls.AccessReadWrite})
	t.expect(err != nil && isContext(err), "Open with an ended context is the context's error; got %v", err)
	t.open(c, 1, 2).append(data("works"))
}
