package walmanager

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/walrig/walrig/host/wal"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeOpener counts what it has open, and fails or blocks as a test says.
type fakeOpener struct {
	// onOpen and onClose, where set, decide about an Open and a WAL's Close.
	onOpen  func(ctx context.Context, channel string, term int64) error
	onClose func(ctx context.Context, channel string, term int64) error
	// forgets says that names are forgotten, so that terms may go back.
	forgets bool

	mu      sync.Mutex // guards all below
	opens   []string   // "name@term" of every Open that began
	live    map[string]int
	maxLive map[string]int
	last    map[string]int64 // the term of the last WAL of a name
	wals    map[string]*fakeWAL
	defects []string
	closed  int
}

func newFakeOpener() *fakeOpener {
	return &fakeOpener{live: map[string]int{}, maxLive: map[string]int{}, last: map[string]int64{}, wals: map[string]*fakeWAL{}}
}

func (o *fakeOpener) Open(ctx context.Context, channel string, term int64) (wal.WAL, error) {
	o.mu.Lock()
	o.opens = append(o.opens, fmt.Sprintf("%s@%d", channel, term))
	if o.live[channel] > 0 {
		o.defects = append(o.defects, fmt.Sprintf("%s@%d is opened before the old wal is closed", channel, term))
	}
	if o.closed > 0 {
		o.defects = append(o.defects, fmt.Sprintf("%s@%d is opened after the opener was closed", channel, term))
	}
	o.mu.Unlock()
	if o.onOpen != nil {
		if err := o.onOpen(ctx, channel, term); err != nil {
			return nil, err
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if last, ok := o.last[channel]; ok && last >= term && !o.forgets {
		o.defects = append(o.defects, fmt.Sprintf("%s goes back from term %d to %d", channel, last, term))
	}
	o.last[channel] = term
	o.live[channel]++
	o.maxLive[channel] = max(o.maxLive[channel], o.live[channel])
	w := &fakeWAL{opener: o, name: channel, term: term, done: make(chan struct{})}
	o.wals[channel] = w
	return w, nil
}

func (o *fakeOpener) Close(context.Context) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed++
	for name, n := range o.live {
		if n > 0 {
			o.defects = append(o.defects, fmt.Sprintf("the opener is closed while %s is open", name))
		}
	}
	return nil
}

// check fails the test if the opener saw anything that may not happen, or if
// other than want WALs are open.
func (o *fakeOpener) check(t testing.TB, want int) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, d := range o.defects {
		t.Error(d)
	}
	n := 0
	for name, live := range o.live {
		n += live
		if o.maxLive[name] > 1 {
			t.Errorf("%s had %d wals open at once", name, o.maxLive[name])
		}
	}
	if n != want {
		t.Errorf("%d wals are open, want %d", n, want)
	}
}

func (o *fakeOpener) wal(channel string) *fakeWAL {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.wals[channel]
}

func (o *fakeOpener) openCount() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.opens)
}

// fakeWAL is open until it is closed; end ends its term from outside.
type fakeWAL struct {
	wal.WAL // what the manager never calls
	opener  *fakeOpener
	name    string
	term    int64

	mu     sync.Mutex // guards all below
	closed bool
	err    error
	done   chan struct{}
}

func (w *fakeWAL) Channel() walimpls.Channel {
	return walimpls.Channel{Name: w.name, Pair: walimpls.Pair{Term: w.term, Incarnation: 1}, Access: walimpls.AccessReadWrite}
}

func (w *fakeWAL) Append(_ context.Context, batch []message.Message) []wal.Result {
	w.mu.Lock()
	defer w.mu.Unlock()
	results := make([]wal.Result, len(batch))
	for i := range results {
		results[i].State = walimpls.Stored
		if w.err != nil {
			results[i].Outcome = walimpls.Outcome{State: walimpls.NotStored, Err: w.err}
		}
	}
	return results
}

func (w *fakeWAL) Truncate(context.Context, message.ID) error            { return nil }
func (w *fakeWAL) Bounds(context.Context) (b walimpls.Bounds, err error) { return b, nil }
func (w *fakeWAL) Status() wal.Status                                    { return wal.Status{Channel: w.Channel()} }
func (w *fakeWAL) Done() <-chan struct{}                                 { return w.done }

func (w *fakeWAL) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// end ends the WAL from outside; it stays a handle that must be closed.
func (w *fakeWAL) end(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.done:
	default:
		w.err = err
		close(w.done)
	}
}

func (w *fakeWAL) Close(ctx context.Context) error {
	w.end(walimpls.Errorf(walimpls.CodeClosed, w.name, "the wal is closed"))
	var err error
	if w.opener.onClose != nil {
		err = w.opener.onClose(ctx, w.name, w.term)
	}
	w.mu.Lock()
	again := w.closed
	w.closed = true
	w.mu.Unlock()
	w.opener.mu.Lock()
	defer w.opener.mu.Unlock()
	if again {
		w.opener.defects = append(w.opener.defects, fmt.Sprintf("%s@%d is closed twice", w.name, w.term))
	} else {
		w.opener.live[w.name]--
	}
	return err
}

// nap waits for a random time up to limit, or less if ctx ends.
func nap(ctx context.Context, limit time.Duration) error {
	timer := time.NewTimer(rand.N(limit))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// closeManager closes the manager within a bound and checks that nothing is left.
func closeManager(t testing.TB, m *Manager, o *fakeOpener) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := m.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
	o.check(t, 0)
	if o.closed != 1 {
		t.Errorf("the opener was closed %d times", o.closed)
	}
}

// nilOpener returns neither a WAL nor an error where the fake would succeed.
type nilOpener struct{ *fakeOpener }

func (o nilOpener) Open(ctx context.Context, channel string, term int64) (wal.WAL, error) {
	return nil, o.onOpen(ctx, channel, term)
}

// panicOnClose makes WALs whose Close panics after it has closed them.
type panicOnClose struct{ *fakeOpener }

func (o panicOnClose) Open(ctx context.Context, channel string, term int64) (wal.WAL, error) {
	w, err := o.fakeOpener.Open(ctx, channel, term)
	if err != nil {
		return nil, err
	}
	return panickingWAL{w}, nil
}

type panickingWAL struct{ wal.WAL }

func (w panickingWAL) Close(ctx context.Context) error { panic(w.WAL.Close(ctx)) }
