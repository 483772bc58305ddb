package wab

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/walrig/walrig/sdk/message"
)

func record(tick int) message.Message {
	return message.Message{Type: message.TypeData, TimeTick: message.Tick(tick), ID: message.Uint64ID(uint64(tick)), Payload: []byte(fmt.Sprint(tick))}
}

// persisted is a time tick that is in the log, memory one that is not.
func persisted(tick int) message.Message {
	m := memory(tick)
	m.ID = message.Uint64ID(uint64(tick))
	return m
}

func memory(tick int) message.Message {
	return message.Message{Type: message.TypeTimeTick, TimeTick: message.Tick(tick)}
}

// put appends records covered by a persisted time tick, as its last record.
func put(b *Buffer, tick int, records ...int) {
	var all []message.Message
	for _, r := range records {
		all = append(all, record(r))
	}
	b.Append(append(all, persisted(tick)), persisted(tick))
}

// show renders what a reader was given: records by tick, time ticks with a T.
func show(records []message.Message) string {
	var out []string
	for i := range records {
		s := fmt.Sprint(records[i].TimeTick)
		if records[i].Type == message.TypeTimeTick {
			s = "T" + s
		}
		out = append(out, s)
	}
	return strings.Join(out, " ")
}

func next(t *testing.T, r *Reader) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	records, err := r.Next(ctx)
	if err != nil {
		t.Fatalf("behind tick %d: %v", r.Tick(), err)
	}
	return show(records)
}

// blocks says whether a reader has nothing to give.
func blocks(t *testing.T, r *Reader) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if records, err := r.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("behind tick %d there is %q, %v; want it to block", r.Tick(), show(records), err)
	}
}

func reader(t *testing.T, b *Buffer, tick int) *Reader {
	t.Helper()
	r, err := b.ReadAfter(message.Tick(tick))
	if err != nil {
		t.Fatalf("read after %d: %v", tick, err)
	}
	return r
}

func unbounded(opening int) *Buffer {
	return New(Options{MaxBytes: 1 << 30, MaxAge: time.Hour}, persisted(opening))
}

// TestReaderBeginsBehindAnyTickBetweenBoundaryAndHorizon also covers a snapshot
// by tick and the end of what there is.
func TestReaderBeginsBehindAnyTickBetweenBoundaryAndHorizon(t *testing.T) {
	b := unbounded(100)
	put(b, 105, 101, 103)
	put(b, 110, 106)
	for from, want := range map[int]string{
		100: "101 103 T105", 101: "103 T105", 102: "103 T105", 103: "T105", 105: "106 T110", 106: "T110",
	} {
		if got := next(t, reader(t, b, from)); got != want {
			t.Errorf("behind %d: %q, want %q", from, got, want)
		}
	}
	blocks(t, reader(t, b, 110))
	if _, err := b.ReadAfter(99); !errors.Is(err, ErrEvicted) {
		t.Errorf("below the boundary: %v", err)
	}
	if _, err := b.ReadAfter(111); !errors.Is(err, ErrAhead) {
		t.Errorf("above the horizon: %v", err)
	}
}

func TestEvictionBySizeLeavesTheNewestPersistedTick(t *testing.T) {
	b := New(Options{MaxBytes: 1, MaxAge: time.Hour}, persisted(100))
	old := reader(t, b, 100)
	put(b, 105, 101, 103)
	put(b, 110, 106)
	if s := b.Stats(); s.Boundary != 110 || s.Records != 0 || s.Bytes != 0 {
		t.Errorf("it holds %+v, want nothing up to 110", s)
	}
	blocks(t, reader(t, b, 110)) // who comes from the log meets tick 110 and goes on here
	if _, err := old.Next(context.Background()); !errors.Is(err, ErrEvicted) {
		t.Errorf("a reader that fell behind: %v", err)
	}
	b.Append([]message.Message{record(111)}, memory(112))
	if s := b.Stats(); s.Boundary != 110 || s.Records != 2 {
		t.Errorf("it holds %+v, want the record that no persisted tick covers", s)
	}
}

func TestEvictionByAgeFollowsTheClockAndNeverPassesThePersistedTick(t *testing.T) {
	now := time.UnixMilli(0)
	b := New(Options{MaxBytes: 1 << 30, MaxAge: time.Second, Now: func() time.Time { return now }}, persisted(100))
	put(b, 105, 101)
	b.Append([]message.Message{record(106)}, memory(107))
	now = now.Add(900 * time.Millisecond)
	put(b, 110, 108)
	if s := b.Stats(); s.Boundary != 100 {
		t.Fatalf("evicted before their time: %+v", s)
	}
	now = now.Add(200 * time.Millisecond)
	b.Append(nil, memory(111)) // an idle tick evicts
	if s := b.Stats(); s.Boundary != 107 || s.Records != 2 {
		t.Fatalf("%+v, want everything up to 107 evicted and two records left", s)
	}
	b.Append([]message.Message{record(112)}, memory(113))
	now = now.Add(time.Hour)
	b.Append(nil, memory(114))
	if s := b.Stats(); s.Boundary != 110 || s.Records != 2 {
		t.Fatalf("%+v, want the boundary at the persisted tick 110", s)
	}
}

// TestWhatAReaderWasGivenStaysValid: eviction and new records do not change it.
func TestWhatAReaderWasGivenStaysValid(t *testing.T) {
	b := New(Options{MaxBytes: 600, MaxAge: time.Hour}, persisted(100))
	put(b, 105, 101, 103)
	r := reader(t, b, 100)
	records, err := r.Next(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		put(b, 110+10*i, 106+10*i, 107+10*i, 108+10*i)
	}
	if got := show(records); got != "101 103 T105" {
		t.Errorf("it became %q", got)
	}
	if _, err := r.Next(context.Background()); !errors.Is(err, ErrEvicted) {
		t.Errorf("behind its snapshot: %v, want ErrEvicted", err)
	}
}

// TestIdleTicksAreSeenByReaders: 4.7 "only idle ticks".
func TestIdleTicksAreSeenByReaders(t *testing.T) {
	b := unbounded(100)
	r := reader(t, b, 100)
	blocks(t, r)
	for tick := 101; tick < 104; tick++ {
		b.Append(nil, memory(tick))
		if got := next(t, r); got != fmt.Sprint("T", tick) {
			t.Fatalf("%q, want T%d", got, tick)
		}
		blocks(t, r)
	}
	for tick := 104; tick < 110; tick++ {
		b.Append(nil, memory(tick))
	}
	if got := next(t, r); got != "T109" {
		t.Errorf("%q, want the newest tick alone", got)
	}
	if got := next(t, reader(t, b, 100)); got != "T109" {
		t.Errorf("from the opening: %q, want the newest tick", got)
	}
	if s := b.Stats(); s.Records != 0 || s.Bytes != 0 {
		t.Errorf("idle ticks are kept: %+v", s)
	}
}

func TestTickAtOrBelowTheHorizonSaysNothing(t *testing.T) {
	b := unbounded(100)
	put(b, 105, 101)
	b.Append(nil, memory(105))
	b.Append(nil, memory(104))
	r := reader(t, b, 105)
	blocks(t, r)
	if b.Horizon() != 105 {
		t.Errorf("the horizon is %d", b.Horizon())
	}
}

// TestReadersFromEverywhereSeeEverythingInOrder: 4.7 "concurrent". Readers begin
// at the front and in the middle while records come, then all wait, and a later
// idle tick wakes them.
func TestReadersFromEverywhereSeeEverythingInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := unbounded(100)
		const last = 2000
		var wg sync.WaitGroup
		read := func(from int) {
			r := reader(t, b, from)
			wg.Go(func() {
				want := from + 1
				for {
					records, err := r.Next(t.Context())
					if err != nil {
						t.Errorf("from %d at %d: %v", from, want, err)
						return
					}
					for i := range records {
						if records[i].Type == message.TypeTimeTick {
							if records[i].TimeTick == last+100 {
								if want < last {
									t.Errorf("from %d: at %d when the idle tick came", from, want)
								}
								return
							}
							continue
						}
						for want%10 == 0 { // persisted ticks take every tenth
							want++
						}
						if int(records[i].TimeTick) != want {
							t.Errorf("from %d: tick %d, want %d", from, records[i].TimeTick, want)
							return
						}
						want++
					}
				}
			})
		}
		for tick := 101; tick < last; tick += 10 {
			if tick%400 == 1 {
				read(tick - 1)
				read(100)
			}
			put(b, tick+9, tick, tick+1, tick+2, tick+3, tick+4, tick+5, tick+6, tick+7, tick+8)
		}
		synctest.Wait() // every reader waits at the end
		b.Append(nil, memory(last+100))
		wg.Wait()
	})
}

func TestCloseEndsEveryReaderWithItsReason(t *testing.T) {
	b := unbounded(100)
	put(b, 105, 101)
	waiting := reader(t, b, 105)
	behind := reader(t, b, 100)
	why := errors.New("the term is over")
	done := make(chan error)
	go func() {
		_, err := waiting.Next(context.Background())
		done <- err
	}()
	b.Close(why)
	b.Close(errors.New("again"))
	if err := <-done; !errors.Is(err, why) {
		t.Errorf("a waiting reader: %v", err)
	}
	if _, err := behind.Next(context.Background()); !errors.Is(err, why) {
		t.Errorf("a reader with records to come: %v", err)
	}
	if _, err := b.ReadAfter(105); !errors.Is(err, why) {
		t.Errorf("a new reader: %v", err)
	}
	put(b, 110, 106) // ignored
}

func TestCoversSaysWhetherToComeNowLaterOrNever(t *testing.T) {
	b := New(Options{MaxBytes: 1, MaxAge: time.Hour}, persisted(100))
	put(b, 105, 101)
	for tick, want := range map[int][2]bool{104: {false, false}, 105: {true, false}, 106: {false, true}} {
		if covers, behind, _ := b.Covers(message.Tick(tick)); covers != want[0] || behind != want[1] {
			t.Errorf("tick %d: covers %v, behind %v; want %v", tick, covers, behind, want)
		}
	}
	_, _, changed := b.Covers(106)
	b.Append(nil, memory(106))
	select {
	case <-changed:
	default:
		t.Error("an Append does not tell who waits")
	}
}

// TestBufferIsAWindowOfTheWholeSequence compares it with a list that forgets
// nothing: a reader gets exactly what lies behind its tick, or ErrEvicted; never
// a gap.
func TestBufferIsAWindowOfTheWholeSequence(t *testing.T) {
	type held struct {
		r    *Reader
		seen []message.Tick
		from message.Tick
	}
	rapid.Check(t, func(t *rapid.T) {
		now := time.UnixMilli(0)
		b := New(Options{
			MaxBytes: rapid.SampledFrom([]int{1, 400, 2000, 1 << 20}).Draw(t, "bytes"), MaxAge: 10 * time.Millisecond,
			Now: func() time.Time { return now },
		}, persisted(100))
		var all []message.Tick // data records
		last, newest := 100, message.Tick(100)
		var readers []*held
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				s := b.Stats()
				if s.Boundary > newest {
					t.Fatalf("the boundary %d is above the newest persisted tick %d", s.Boundary, newest)
				}
				if s.Horizon != message.Tick(last) {
					t.Fatalf("the horizon is %d, want %d", s.Horizon, last)
				}
			},
			"append": func(t *rapid.T) {
				var records []message.Message
				for range rapid.IntRange(0, 4).Draw(t, "records") {
					last += rapid.IntRange(1, 3).Draw(t, "step")
					if rapid.IntRange(0, 4).Draw(t, "tick between") == 0 {
						records = append(records, persisted(last))
						newest = message.Tick(last)
						continue
					}
					records = append(records, record(last))
					all = append(all, message.Tick(last))
				}
				if n := len(records); n > 0 && records[n-1].Type == message.TypeTimeTick {
					b.Append(records, records[n-1])
					return
				}
				last++
				b.Append(records, memory(last))
			},
			"time passes": func(t *rapid.T) { now = now.Add(time.Duration(rapid.IntRange(1, 20).Draw(t, "ms")) * time.Millisecond) },
			"read": func(t *rapid.T) {
				from := message.Tick(rapid.IntRange(95, last+2).Draw(t, "from"))
				s := b.Stats()
				r, err := b.ReadAfter(from)
				switch {
				case from < s.Boundary && !errors.Is(err, ErrEvicted), from > s.Horizon && !errors.Is(err, ErrAhead):
					t.Fatalf("read after %d of %+v: %v", from, s, err)
				case err == nil:
					readers = append(readers, &held{r: r, from: from})
				}
			},
			"next": func(t *rapid.T) {
				if len(readers) == 0 {
					t.Skip("nobody reads")
				}
				h := rapid.SampledFrom(readers).Draw(t, "reader")
				ctx, cancel := context.WithCancel(context.Background())
				cancel()
				at := h.r.Tick()
				records, err := h.r.Next(ctx)
				if at < b.Stats().Boundary != errors.Is(err, ErrEvicted) {
					t.Fatalf("at %d of %+v: %v", at, b.Stats(), err)
				}
				if err != nil {
					if !errors.Is(err, ErrEvicted) && at < message.Tick(last) {
						t.Fatalf("at %d of %d: %v", at, last, err)
					}
					return
				}
				for i := range records {
					if records[i].Type == message.TypeData {
						h.seen = append(h.seen, records[i].TimeTick)
					}
				}
				if records[len(records)-1].Type != message.TypeTimeTick {
					t.Fatalf("%s does not end with a time tick", show(records))
				}
				var want []message.Tick
				for _, tick := range all {
					if tick > h.from && tick <= h.r.Tick() {
						want = append(want, tick)
					}
				}
				if !slices.Equal(h.seen, want) {
					t.Fatalf("the reader from %d saw %v up to %d, want %v", h.from, h.seen, h.r.Tick(), want)
				}
			},
		})
	})
}
