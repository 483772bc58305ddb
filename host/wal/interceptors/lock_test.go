package interceptors

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

type claim struct {
	key       string
	exclusive bool
}

// collides says whether two claims may not be held at one time: "" is all keys.
func collides(a, b claim) bool {
	return (a.exclusive || b.exclusive) && (a.key == b.key || a.key == "" || b.key == "")
}

// TestLockLetsInExactlyWhoCollidesWithNobody drives the lock step by step: at no
// time are two that collide inside, and whoever collides with nobody inside and
// nobody who waits is let in at once.
func TestLockLetsInExactlyWhoCollidesWithNobody(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		k := newKeyLock()
		type holder struct {
			claim
			release func()
			cancel  context.CancelFunc
			in      bool
			gone    bool
		}
		var mu sync.Mutex
		var all []*holder
		var wg sync.WaitGroup
		defer func() { // also when rapid gives a run up
			for _, h := range all {
				h.cancel()
			}
			wg.Wait()
		}()
		inside := func() (list []*holder) {
			for _, h := range all {
				if h.in && !h.gone {
					list = append(list, h)
				}
			}
			return list
		}
		check := func() {
			mu.Lock()
			defer mu.Unlock()
			list := inside()
			for i, a := range list {
				for _, b := range list[:i] {
					if collides(a.claim, b.claim) {
						rt.Fatalf("%+v and %+v are inside together", a.claim, b.claim)
					}
				}
			}
		}
		for range rapid.IntRange(1, 25).Draw(rt, "steps") {
			switch rapid.IntRange(0, 2).Draw(rt, "step") {
			case 0:
				c := claim{rapid.SampledFrom([]string{"", "a", "b"}).Draw(rt, "key"), rapid.Bool().Draw(rt, "exclusive")}
				ctx, cancel := context.WithCancel(context.Background())
				h := &holder{claim: c, cancel: cancel}
				mu.Lock()
				free := true
				for _, o := range all {
					free = free && (o.gone || !collides(o.claim, c))
				}
				all = append(all, h)
				mu.Unlock()
				answered := make(chan struct{})
				wg.Go(func() {
					defer close(answered)
					release, err := k.acquire(ctx, c.key, c.exclusive)
					mu.Lock()
					defer mu.Unlock()
					if err != nil {
						h.gone = true
						return
					}
					h.in, h.release = true, release
				})
				if free {
					select {
					case <-answered:
					case <-time.After(5 * time.Second):
						rt.Fatalf("%+v is not let in although nobody collides", c)
					}
				}
			case 1:
				mu.Lock()
				list := inside()
				mu.Unlock()
				if len(list) > 0 {
					h := rapid.SampledFrom(list).Draw(rt, "holder")
					mu.Lock()
					h.gone = true
					mu.Unlock()
					h.release()
				}
			case 2:
				mu.Lock()
				var waiting []*holder
				for _, h := range all {
					if !h.in && !h.gone {
						waiting = append(waiting, h)
					}
				}
				mu.Unlock()
				if len(waiting) > 0 {
					waiting[0].cancel()
				}
			}
			check()
		}
		// Everybody leaves; whoever waits gets in and leaves, so nobody waits for ever.
		done := make(chan struct{})
		go func() { wg.Wait(); close(done) }()
		deadline := time.Now().Add(10 * time.Second)
		for ended := false; !ended; {
			mu.Lock()
			list := inside()
			for _, h := range list {
				h.gone = true
			}
			mu.Unlock()
			for _, h := range list {
				h.release()
			}
			check()
			select {
			case <-done:
				mu.Lock()
				ended = len(inside()) == 0
				mu.Unlock()
			case <-time.After(time.Millisecond):
			}
			if time.Now().After(deadline) {
				rt.Fatal("somebody waits for ever")
			}
		}
		if len(k.keys)+len(k.waiting)+k.readers+k.writers+k.all.readers != 0 || k.all.writer {
			rt.Fatalf("the empty lock holds %+v", k)
		}
	})
}

// starves reports whether who is let in within a minute, while others of the
// kind come without end and overlap.
func starves(t *testing.T, others []claim, who claim) (starved bool) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeyLock()
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for i := range 6 {
			c := others[i%len(others)]
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 300 * time.Millisecond)
				for {
					select {
					case <-stop:
						return
					default:
					}
					release, err := k.acquire(context.Background(), c.key, c.exclusive)
					if err != nil {
						t.Error(err)
						return
					}
					time.Sleep(time.Second)
					release()
				}
			})
		}
		time.Sleep(10 * time.Second)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		release, err := k.acquire(ctx, who.key, who.exclusive)
		starved = err != nil
		if err == nil {
			release()
		}
		close(stop)
		wg.Wait()
	})
	return starved
}

func TestNobodyStarves(t *testing.T) {
	for name, c := range map[string]struct {
		others []claim
		who    claim
	}{
		"an exclusive record among appends":                    {[]claim{{"a", false}}, claim{"a", true}},
		"a pchannel's exclusive record among appends":          {[]claim{{"a", false}, {"b", false}, {"", false}}, claim{"", true}},
		"an exclusive record among appends to all":             {[]claim{{"", false}}, claim{"a", true}},
		"a pchannel's exclusive record among exclusive ones":   {[]claim{{"a", true}, {"b", true}}, claim{"", true}},
		"an exclusive record among a pchannel's":               {[]claim{{"", true}}, claim{"a", true}},
		"an append among exclusive records":                    {[]claim{{"a", true}}, claim{"a", false}},
		"an append to all among exclusive records of two keys": {[]claim{{"a", true}, {"b", true}}, claim{"", false}},
	} {
		t.Run(name, func(t *testing.T) {
			if starves(t, c.others, c.who) {
				t.Error("it waited for a minute")
			}
		})
	}
}

func TestWaitForTheLockIsBoundedByTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var held []*Operation
		c := NewChain(func(op *Operation) { held = append(held, op) }, Lock())
		exclusive := message.Message{Type: message.TypeDropVChannel, VChannel: "a"}
		var first, second, third []Result
		c.Append(op(context.Background(), &first, exclusive))
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		c.Append(op(ctx, &second, message.Message{Type: message.TypeData, VChannel: "a"}))
		if len(held) != 1 || second[0].State != walimpls.NotStored || !errors.Is(second[0].Err, walimpls.ErrTimeout) {
			t.Fatalf("%+v", second)
		}
		c.Append(op(context.Background(), &third, message.Message{Type: message.TypeData, VChannel: "b"}))
		if len(held) != 2 {
			t.Error("another vchannel had to wait")
		}
	})
}

// TestAnsweredIsNotSettled: the caller of an exclusive record leaves; what comes
// behind still waits until the record is resolved.
func TestAnsweredIsNotSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var held []*Operation
		c := NewChain(func(op *Operation) { held = append(held, op) }, Lock())
		var first, second []Result
		c.Append(op(context.Background(), &first, message.Message{Type: message.TypeCreateVChannel}))
		held[0].Done(make([]Result, 1)) // unknown: its caller left
		go c.Append(op(context.Background(), &second))
		synctest.Wait()
		if len(held) != 1 {
			t.Error("an append went past an unresolved exclusive record")
		}
		held[0].Settle()
		synctest.Wait()
		if len(held) != 2 {
			t.Error("an append still waits for a settled record")
		}
	})
}

func TestExclusiveRecordIsAloneInItsBatch(t *testing.T) {
	c := NewChain(store, Lock())
	drop := message.Message{Type: message.TypeDropVChannel, VChannel: "a"}
	for _, batch := range [][]message.Message{{drop, drop}, {drop, {Type: message.TypeData}}, {{Type: message.TypeData}, drop}} {
		var answer []Result
		c.Append(op(context.Background(), &answer, batch...))
		if len(answer) != 2 || !errors.Is(answer[0].Err, walimpls.ErrInvalidArgument) {
			t.Errorf("%+v", answer)
		}
	}
}
