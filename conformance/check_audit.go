package conformance

import (
	"context"
	"errors"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// The audit compares claims with deeds in both directions: what is claimed and
// does not work fails, what works and is not claimed is a warning, and what is
// not offered must say so.
var auditChecks = []check{
	{Clause: "WAL-AUD-001", Name: "truncation", Run: auditTruncation},
	{Clause: "WAL-AUD-002", Name: "drop", Run: auditDrop},
	{Clause: "WAL-AUD-003", Name: "read-only", Run: auditReadOnly},
	{Clause: "WAL-AUD-004", Name: "fencing", Run: auditFencing},
	{Clause: "WAL-AUD-005", Name: "durability", Alone: true, Run: auditDurability},
	{Clause: "WAL-AUD-006", Name: "exclusive-store", Run: auditExclusiveStore},
}

// expectUnsupported judges a call that the backend does not claim. worked says
// that it had its effect all the same.
func (t *T) expectUnsupported(what string, err error, worked func() bool) {
	if err == nil {
		if worked() {
			t.warnf("%s works and is not claimed: claim it in the description", what)
			return
		}
		t.fatalf("%s, which is not claimed, is ErrUnsupported; it returned no error and did nothing", what)
	}
	t.expect(errors.Is(err, walimpls.ErrUnsupported), "%s, which is not claimed, is ErrUnsupported; got %v", what, err)
}

func auditTruncation(t *T) {
	h := t.open(t.channel(), 1, 1)
	ids := h.append(series("m", 5)...)
	err := h.tryTruncate(ids[3])
	if t.claimed(CapTruncation) {
		t.expect(err == nil && h.bounds().Earliest == ids[3], "Truncate, which is claimed, works; got %v and the bounds %+v", err, h.bounds())
		return
	}
	t.expectUnsupported("Truncate", err, func() bool { return h.bounds().Earliest == ids[3] })
	if err != nil {
		t.expectLog(h.messages(), series("m", 5), ids, "the log after a Truncate that is not supported")
	}
}

func auditDrop(t *T) {
	c := t.channel()
	h := t.open(c, 1, 1)
	h.append(data("m"))
	h.close()
	err := t.tryDrop(c, 1)
	empty := func() bool { return len(withoutFences(t.open(c, 2, 1).log())) == 0 }
	if t.claimed(CapDrop) {
		t.expect(err == nil && empty(), "Drop, which is claimed, works; got %v", err)
		return
	}
	t.expectUnsupported("Drop", err, empty)
	if err != nil {
		t.expectLog(t.open(c, 2, 1).messages(), []message.Message{data("m")}, nil, "the log after a Drop that is not supported")
	}
}

func auditReadOnly(t *T) {
	c := t.channel()
	owner := t.open(c, 1, 1)
	owner.append(data("m"))
	ro, err := t.tryOpenReadOnly(c)
	if t.claimed(CapReadOnly) {
		t.expect(err == nil, "a read-only Open, which is claimed, works; got %v", err)
		return
	}
	t.expectUnsupported("a read-only Open", err, func() bool {
		return len(ro.read(walimpls.FromAll()).take(1)) == 1
	})
}

func auditFencing(t *T) {
	c := t.channel()
	old := t.open(c, 5, 1)
	_, low := t.tryOpen(c, 4, 1)
	owner := t.open(c, 6, 1)
	_, zombie := old.tryAppend(t.ctx, data("zombie"))
	fences := errors.Is(low, walimpls.ErrFenced) && errors.Is(zombie, walimpls.ErrFenced)
	if t.claimed(CapFencing) {
		t.expect(fences, "a backend that claims fencing refuses a lower term and an old handle; it said %v and %v", low, zombie)
		_, err := owner.tryAppend(t.ctx, data("owner"))
		t.expect(err == nil, "the owner's append succeeds; got %v", err)
		return
	}
	if fences {
		t.warnf("a lower term and an old handle are refused, and fencing is not claimed: claim it if that holds over processes")
	}
	t.notClaimed("the backend does not claim: %s", CapFencing)
}

func auditDurability(t *T) {
	c := t.channel()
	h := t.open(c, 1, 1)
	h.append(data("m"))
	h.close()
	t.stop()
	t.restart()
	got := t.open(c, 2, 1).messages()
	if t.claimed(CapDurability) {
		t.expectLog(got, []message.Message{data("m")}, nil, "the log of a backend that claims durability, after a restart")
		return
	}
	if len(got) == 1 {
		t.warnf("a record outlives a restart, and durability is %s: claim more if it outlives a power loss", t.description().Capabilities.Durability)
	}
	t.notClaimed("the backend does not claim: %s", CapDurability)
}

func auditExclusiveStore(t *T) {
	exclusive := t.description().Capabilities.ExclusiveStore
	if exclusive && !t.claimed(CapDurability) {
		t.notClaimed("the store is in the memory of its process: there is nothing that a second process could share")
	}
	first := t.open(t.channel(), 1, 1)
	first.append(data("before"))
	var second Instance
	err := t.call(t.ctx, t.run.opt.Bound, "start a second process on the store", func(ctx context.Context) (string, error) {
		var err error
		second, err = t.run.target.Start(ctx)
		return "up", err
	})
	t.expect(err == nil, "a second process starts: Build touches no store; got %v", err)
	defer func() {
		_ = t.call(context.WithoutCancel(t.ctx), t.run.opt.closeBound(), "stop the second process", func(ctx context.Context) (string, error) {
			return "ok", second.Close(ctx)
		})
	}()
	c := t.channel()
	ctx, cancel := context.WithTimeout(t.ctx, 4*t.quiet)
	if !exclusive {
		ctx = t.ctx
	}
	defer cancel()
	_, err = t.tryOpenOn(ctx, second, walimpls.OpenOptions{Channel: c, Term: 1, Incarnation: 1, Access: walimpls.AccessReadWrite})
	if exclusive {
		t.expect(err != nil, "while one process holds an exclusive store another's Open waits; it returned a handle")
	} else {
		t.expect(err == nil, "a store that is not exclusive lets a second process in; got %v", err)
	}
	first.append(data("after"))
	t.expectLog(first.messages(), []message.Message{data("before"), data("after")}, nil, "the log of the first process")
}
