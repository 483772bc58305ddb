package scanner

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/walrig/walrig/host/catalog"
	"github.com/walrig/walrig/host/wal/wab"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// world is a pchannel that a test writes record by record: the log, the owner's
// write-ahead buffer, and one reader.
type world struct {
	term int64
	clk  time.Time // of the buffer

	mu      sync.Mutex // guards all below
	log     []message.Message
	early   int // position of the first record that is left
	pair    walimpls.Pair
	changed chan struct{}
	buffer  *wab.Buffer
	highest message.Tick
	open    map[uint64]int // position of the begins of open transactions
	cut     *catalog.Checkpoint
	broken  int // counts breaks of the backend; a scanner of an older count fails
	err     error
	done    chan struct{}
	reads   int
	batch   int // records that one Next of the backend returns

	scanner *Scanner
	stop    chan struct{}
	cancel  context.CancelFunc
	looks   int // of the scanner at the buffer until between is called
	between func()
	gate    chan struct{} // the reader waits for it to be closed between two calls
	printed []string
	given   []message.Checkpoint // of the units that the reader got
	mode    Mode
}

const storeID = "store"

// newWorld returns a pchannel at term 1: a fence record (id 1) and the opening
// tick 1 (id 2).
func newWorld() *world {
	w := &world{term: 1, early: 1, changed: make(chan struct{}), done: make(chan struct{}), open: map[uint64]int{}, batch: 100, clk: time.Unix(0, 0)}
	w.write("F1.1", "T1")
	w.buffer = wab.New(wab.Options{MaxBytes: 1 << 20, MaxAge: time.Minute, Now: func() time.Time { return w.clk }}, w.log[1])
	return w
}

// record parses a record:
//
//	5      data at tick 5            F1.2   fence record of term 1, incarnation 2
//	T5     time tick                 X5     barrier
//	B5     begin of transaction 5    D5:7   body of transaction 5 at tick 7
//	C5:9/2 commit of 5 at tick 9 that counts 2 bodies
//	R5:9   rollback
//
// and behind it, in this order: =text another payload, %v1 a vchannel, ~1.1 another
// pair than the last fence record's, ^3 the last confirmed id 3.
func (w *world) record(token string) message.Message {
	m := message.Message{Type: message.TypeData, Term: w.pair.Term, Incarnation: w.pair.Incarnation}
	cut := func(sep string) string {
		before, after, _ := strings.Cut(token, sep)
		token = before
		return after
	}
	if lc := cut("^"); lc != "" {
		m.LastConfirmed = message.Uint64ID(uint64(number(lc)))
	}
	if pair := cut("~"); pair != "" {
		_, _ = fmt.Sscanf(pair, "%d.%d", &m.Term, &m.Incarnation)
	}
	m.VChannel = cut("%")
	payload := cut("=")
	if strings.HasPrefix(token, "F") {
		m.Type = message.TypeFence
		_, _ = fmt.Sscanf(token[1:], "%d.%d", &m.Term, &m.Incarnation)
		w.pair = walimpls.Pair{Term: m.Term, Incarnation: m.Incarnation}
		return m
	}
	count := cut("/")
	kind := token[:1]
	types := map[string]message.Type{
		"T": message.TypeTimeTick, "X": message.TypeBarrier, "B": message.TypeBeginTxn, "C": message.TypeCommitTxn, "R": message.TypeRollbackTxn, "D": message.TypeData,
	}
	if typ, ok := types[kind]; ok {
		m.Type, token = typ, token[1:]
	}
	if txn, tick, ok := strings.Cut(token, ":"); ok {
		m.TxnID, token = uint64(number(txn)), tick
	}
	m.TimeTick = message.Tick(number(token))
	switch m.Type {
	case message.TypeBeginTxn:
		m.TxnID = uint64(m.TimeTick)
	case message.TypeCommitTxn:
		m.Payload = []byte{byte(number(count))}
	case message.TypeData:
		m.Payload = []byte(token + payload)
	}
	return m
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(fmt.Sprintf("%q is no number", s))
	}
	return n
}

// write appends records to the log. A record without a last confirmed id gets
// the oldest open transaction's begin, or its own.
func (w *world) write(tokens ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, token := range tokens {
		w.stamp(w.record(token))
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *world) stamp(m message.Message) {
	at := len(w.log) + 1
	m.ID = message.Uint64ID(uint64(at))
	if m.Type == message.TypeBeginTxn {
		w.open[m.TxnID] = at
	}
	if m.Type != message.TypeFence && m.LastConfirmed == "" {
		lc := at
		for _, begun := range w.open {
			lc = min(lc, begun)
		}
		m.LastConfirmed = message.Uint64ID(uint64(lc))
	}
	if m.Type == message.TypeCommitTxn || m.Type == message.TypeRollbackTxn {
		delete(w.open, m.TxnID)
	}
	if m.Term == w.term {
		w.highest = max(w.highest, m.TimeTick)
	}
	w.log = append(w.log, m)
}

// settle puts records of the log, named by their ticks, into the buffer with the
// time tick; T5 is the record of the log, t5 one that lives in memory alone.
func (w *world) settle(tokens ...string) {
	var records []message.Message
	for _, token := range tokens {
		tick := message.Tick(number(strings.TrimLeft(token, "Tt")))
		if strings.HasPrefix(token, "t") {
			m := message.Message{Type: message.TypeTimeTick, TimeTick: tick, Term: w.term, LastConfirmed: w.lastConfirmed()}
			w.mu.Lock()
			w.highest = max(w.highest, tick)
			w.mu.Unlock()
			w.buffer.Append(records, m)
			return
		}
		w.mu.Lock()
		for _, m := range w.log {
			if m.TimeTick == tick && m.Term == w.term {
				records = append(records, m)
				break
			}
		}
		w.mu.Unlock()
	}
	w.buffer.Append(records, records[len(records)-1])
}

func (w *world) lastConfirmed() message.ID {
	w.mu.Lock()
	defer w.mu.Unlock()
	lc := len(w.log)
	for _, begun := range w.open {
		lc = min(lc, begun)
	}
	return message.Uint64ID(uint64(lc))
}

// The world is a Source.

func (w *world) Channel() (string, string) { return "p", storeID }
func (w *world) Term() int64               { return w.term }
func (w *world) Done() <-chan struct{}     { return w.done }

// Buffer also lets a test come between two looks of the scanner at the buffer.
func (w *world) Buffer() *wab.Buffer {
	w.mu.Lock()
	between := w.between
	if w.looks--; w.looks != 0 {
		between = nil
	}
	w.mu.Unlock()
	if between != nil {
		between()
	}
	return w.buffer
}

func (w *world) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

func (w *world) Now() (message.Checkpoint, bool) {
	lc := w.lastConfirmed()
	w.mu.Lock()
	defer w.mu.Unlock()
	return message.Checkpoint{StoreID: storeID, ID: lc, Term: w.term, Tick: w.highest}, len(w.open) == 0
}

func (w *world) Truncation(context.Context) (*catalog.Checkpoint, error) { return w.cut, nil }

func (w *world) Read(_ context.Context, start walimpls.Start) (walimpls.Scanner, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reads++
	at := w.early
	if start.Policy != walimpls.PolicyAll {
		id, _ := start.ID.Uint64()
		at = int(id)
		if at < w.early || at > len(w.log) {
			return nil, walimpls.NewPositionLostError("p", walimpls.Bounds{Earliest: message.Uint64ID(uint64(w.early))}, "position %d", at)
		}
	}
	return &worldScanner{w: w, at: at, broken: w.broken, closed: make(chan struct{})}, nil
}

type worldScanner struct {
	w      *world
	at     int
	broken int
	once   sync.Once
	closed chan struct{}
}

func (s *worldScanner) Next(ctx context.Context) ([]message.Message, error) {
	for {
		s.w.mu.Lock()
		changed := s.w.changed
		switch {
		case s.broken != s.w.broken:
			s.w.mu.Unlock()
			return nil, walimpls.Errorf(walimpls.CodeUnavailable, "p", "the backend is away")
		case s.at < s.w.early:
			early := s.w.early
			s.w.mu.Unlock()
			return nil, walimpls.NewPositionLostError("p", walimpls.Bounds{}, "%d was truncated, the earliest is %d", s.at, early)
		case s.at <= len(s.w.log):
			end := min(s.at-1+s.w.batch, len(s.w.log))
			out := append([]message.Message(nil), s.w.log[s.at-1:end]...)
			s.at = end + 1
			s.w.mu.Unlock()
			return out, nil
		}
		s.w.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-s.closed:
			return nil, walimpls.Errorf(walimpls.CodeClosed, "p", "closed")
		}
	}
}

func (s *worldScanner) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

// start starts a reader.
func (w *world) start(opt Options) {
	w.close()
	s, err := New(context.Background(), w, opt, nil)
	if err != nil {
		w.print("! " + string(walimpls.AsError(err).Code))
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	w.scanner, w.stop, w.cancel, w.mode = s, make(chan struct{}), cancel, CatchUp
	go func() {
		defer close(w.stop)
		for {
			w.mu.Lock()
			gate := w.gate
			w.mu.Unlock()
			if gate != nil {
				<-gate
			}
			units, err := s.Next(ctx)
			if err != nil {
				if ctx.Err() == nil {
					w.print("! " + string(walimpls.AsError(err).Code))
				}
				return
			}
			for i := range units {
				w.unit(&units[i])
			}
		}
	}()
}

func (w *world) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gate != nil {
		close(w.gate)
		w.gate = nil
	}
}

func (w *world) close() {
	w.release()
	if w.scanner != nil {
		w.cancel()
		_ = w.scanner.Close()
		<-w.stop
		w.scanner = nil
	}
}

func (w *world) print(line string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.printed = append(w.printed, line)
}

func (w *world) unit(u *Unit) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(u.Messages) == 0 && !u.CaughtUp {
		w.printed = append(w.printed, "at "+place(u.Checkpoint))
		w.given = append(w.given, u.Checkpoint)
		return
	}
	if len(u.Messages) > 0 {
		w.given = append(w.given, u.Checkpoint)
		w.printed = append(w.printed, fmt.Sprintf("%s  %d.%d", unitText(u), u.Term, u.Tick))
	}
	if u.CaughtUp {
		w.printed = append(w.printed, "caught up")
	}
}

func place(c message.Checkpoint) string {
	id, _ := c.ID.Uint64()
	return fmt.Sprintf("%d.%d from id %d", c.Term, c.Tick, id)
}

func unitText(u *Unit) string {
	var parts []string
	for _, m := range u.Messages {
		text := string(m.Payload)
		if m.Type != message.TypeData {
			text = m.Type.String()
		}
		parts = append(parts, text)
	}
	if u.TxnID != 0 {
		return "[" + strings.Join(parts, " ") + "]"
	}
	return strings.Join(parts, " ")
}

// flush waits until nothing moves and returns what was printed.
func (w *world) flush() []string {
	synctest.Wait()
	if w.scanner != nil {
		if mode := w.scanner.Status().Mode; mode != w.mode {
			w.mode = mode
			w.print("now " + string(mode))
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.printed
	w.printed = nil
	return out
}

// play plays one event of a scenario.
func (w *world) play(t *testing.T, event string) []string {
	words := strings.Fields(event)
	switch words[0] {
	case "log":
		w.write(words[1:]...)
	case "buffer":
		w.settle(words[1:]...)
	case "evict": // everything that is old enough; the next record is young again
		w.clk = w.clk.Add(time.Hour)
		w.settle(words[1:]...)
	case "between": // the n-th look from the start of the reader and the next one
		w.between = func() {
			w.settle(words[2:]...)
			w.clk = w.clk.Add(time.Hour)
			w.settle(fmt.Sprint("t", 2*number(strings.TrimLeft(words[len(words)-1], "Tt"))))
		}
		w.looks = number(words[1])
	case "read":
		opt := Options{ProgressEvery: time.Hour}
		for _, word := range words[1:] {
			key, value, _ := strings.Cut(word, "=")
			switch key {
			case "latest":
				opt.Start = Latest
			case "id":
				opt.Start, opt.ID = FromID, message.Uint64ID(uint64(number(value)))
			case "after":
				opt.Start, opt.ID = AfterID, message.Uint64ID(uint64(number(value)))
			case "unit": // behind the n-th unit that the last reader got
				opt.Start, opt.Checkpoint = Checkpoint, w.given[number(value)-1]
			case "vchannel":
				opt.VChannel = value
			case "drop-late":
				opt.DropLate = true
			case "system":
				opt.System = true
			case "progress":
				opt.ProgressEvery = time.Millisecond
			default:
				t.Fatalf("unknown word %q", word)
			}
		}
		w.start(opt)
	case "batch":
		w.batch = number(words[1])
	case "hold": // the reader takes one more call's units, then waits for go
		w.mu.Lock()
		w.gate = make(chan struct{})
		w.mu.Unlock()
	case "go":
		w.release()
	case "takeover": // the next term is this owner's
		w.write("F2.1")
		w.term = 2
		w.write("T20")
		w.buffer = wab.New(wab.Options{MaxBytes: 1 << 20, MaxAge: time.Minute, Now: func() time.Time { return w.clk }}, w.log[len(w.log)-1])
	case "truncate":
		before := number(words[1])
		w.mu.Lock()
		w.early = before
		w.cut = &catalog.Checkpoint{ID: message.Uint64ID(uint64(before)), LastUnitTerm: 1, LastUnitTick: message.Tick(number(words[2]))}
		close(w.changed)
		w.changed = make(chan struct{})
		w.mu.Unlock()
	case "break": // the backend fails and is back at once
		w.mu.Lock()
		w.broken++
		close(w.changed)
		w.changed = make(chan struct{})
		w.mu.Unlock()
		time.Sleep(time.Minute)
	case "wait":
		d, err := time.ParseDuration(words[1])
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(d)
	case "over": // the term
		w.mu.Lock()
		w.err = walimpls.Errorf(walimpls.CodeTermExpired, "p", "over")
		close(w.done)
		w.mu.Unlock()
		if w.buffer != nil {
			w.buffer.Close(w.err)
		}
	case "status":
		s := w.scanner.Status()
		w.mu.Lock()
		reads := w.reads
		w.mu.Unlock()
		w.print(fmt.Sprintf("%s, restart at %s, %d late, %d reads of the backend", s.Mode, place(s.Checkpoint), s.Violations, reads))
	default:
		t.Fatalf("unknown event %q", event)
	}
	return w.flush()
}
