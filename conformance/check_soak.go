package conformance

import (
	"fmt"
	"sync"
	"time"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

var soakChecks = []check{
	{Clause: "WAL-SOAK-001", Name: "mixed", Bound: 10 * time.Minute, Run: checkSoak},
}

// soaker is the state that the goroutines of a soak share.
type soaker struct {
	*T
	channel string
	oracle  *oracle
	stop    chan struct{}

	mu      sync.Mutex // guards what follows
	owner   *handle
	changed chan struct{} // closed and replaced with owner
	places  []message.ID  // what each reader has reached
}

func checkSoak(t *T) {
	const writers, readers = 4, 3
	s := &soaker{T: t, channel: t.channel(), oracle: newOracle(t), stop: make(chan struct{}), changed: make(chan struct{}), places: make([]message.ID, readers)}
	s.owner = t.open(s.channel, 1, 1)
	logs := make([][]message.Message, readers)
	reading := t.start(func() {
		t.parallel(readers, func(i int) { logs[i] = s.follow(i) })
	})
	writing := t.start(func() {
		t.parallel(writers, func(w int) { s.write(w) })
	})
	fail := guard(func() { s.rule() })
	close(s.stop)
	writing.wait()
	if fail == nil {
		fail = guard(func() { s.current().append(data("end-of-soak")) })
	}
	if fail != nil {
		s.current().close()
		panic(*fail)
	}
	reading.wait()
	for i := range logs {
		last := message.ID("")
		for k := range logs[i] {
			t.expect(last.Less(logs[i][k].ID), "reader %d met ids in ascending order; %s came behind %s", i, showID(logs[i][k].ID), showID(last))
			last = logs[i][k].ID
		}
		s.oracle.verify(logs[i])
		s.oracle.verifyOrder(logs[i])
	}
}

func (s *soaker) current() *handle {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.owner
}

// rule changes the owner and truncates until the time is over.
func (s *soaker) rule() {
	until := time.Now().Add(s.run.opt.Soak)
	term, incarnation := int64(1), int64(1)
	for time.Now().Before(until) && s.ctx.Err() == nil {
		s.pause(s.duration(2 * s.quiet))
		if s.claimed(CapTruncation) {
			s.cut()
		}
		old := s.current()
		if s.intn(2) == 0 {
			term, incarnation = term+1, 1
		} else {
			incarnation++
		}
		if !s.claimed(CapFencing) || s.intn(2) == 0 {
			old.close() // else it goes on as a zombie for a while
		}
		next := s.open(s.channel, term, incarnation)
		s.mu.Lock()
		s.owner = next
		close(s.changed)
		s.changed = make(chan struct{})
		s.mu.Unlock()
		if old.open() {
			s.pause(s.duration(s.quiet / 3))
			old.close()
		}
	}
}

// cut truncates up to what every reader has read.
func (s *soaker) cut() {
	s.mu.Lock()
	h, point := s.owner, s.places[0]
	for _, p := range s.places[1:] {
		if p.Less(point) {
			point = p
		}
	}
	s.mu.Unlock()
	if point != "" {
		h.truncate(point)
	}
}

// write appends until the end; a payload is never used twice.
func (s *soaker) write(w int) {
	for i := 0; ; {
		select {
		case <-s.stop:
			return
		default:
		}
		s.mu.Lock()
		h, changed := s.owner, s.changed
		s.mu.Unlock()
		n := 1 + s.intn(4)
		batch := make([]string, n)
		for k := range batch {
			batch[k] = fmt.Sprintf("w%d-%d", w, i)
			i++
		}
		stored := true
		for _, out := range s.oracle.appendBatch(s.ctx, h, batch...) {
			stored = stored && out.State == walimpls.Stored
		}
		if stored {
			continue
		}
		select { // the next owner's handle will do
		case <-changed:
		case <-s.stop:
			return
		case <-s.ctx.Done():
			return
		}
	}
}

// follow reads everything up to the end, over as many handles as it takes.
func (s *soaker) follow(i int) []message.Message {
	var log []message.Message
	start := walimpls.FromAll()
	for {
		h := s.current()
		sc, err := h.tryRead(walimpls.ReadOptions{Start: start, BufferRecords: 1 << (2 * i)})
		for err == nil {
			var m message.Message
			if m, err = sc.tryTake(); err != nil {
				break
			}
			start = walimpls.StartAfter(m.ID)
			s.mu.Lock()
			s.places[i] = m.ID
			s.mu.Unlock()
			switch {
			case m.Type == message.TypeFence:
			case string(m.Payload) == "end-of-soak":
				sc.close()
				return log
			default:
				log = append(log, m)
			}
		}
		s.expect(!isLost(err), "a reader's place, which was not truncated, is not lost; got %v", err)
		s.expect(s.ctx.Err() == nil, "a reader reaches the end; it was last told %v", err)
		if h == s.current() {
			s.expect(!h.open() || isContext(err), "a reader of the owner's handle goes on; got %v", err)
			s.pause(time.Millisecond)
		}
	}
}
