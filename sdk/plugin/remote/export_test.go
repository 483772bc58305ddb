package remote

// MaxInFlight is for tests.
const MaxInFlight = maxInFlight

// InFlight returns how many requests of w are sent and not answered.
func InFlight(w *WAL) int {
	w.appender.mu.Lock()
	defer w.appender.mu.Unlock()
	return len(w.appender.queue.inFlight)
}

// Waiting returns how many segments of calls wait to be sent.
func Waiting(w *WAL) int {
	w.appender.mu.Lock()
	defer w.appender.mu.Unlock()
	return len(w.appender.queue.waiting)
}

// Buffered returns how many records s has received and not handed out.
func Buffered(s *Scanner) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, b := range s.buffered {
		n += len(b.records)
	}
	return n
}

// Ended is closed when s receives nothing any more.
func Ended(s *Scanner) <-chan struct{} { return s.received }
