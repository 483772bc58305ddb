package pluginhost

import (
	"bytes"
	"io"
)

// maxLine is how much of a line is kept; the rest is counted.
const maxLine = 16 << 10

// maxLineEnd is how much of the end of a longer line is kept beside its beginning.
const maxLineEnd = 4 << 10

// lineSplitter is a writer that calls fn for each line, without its newline.
// However long a line is, no more than maxLine of it is held; fn is told how
// many bytes were cut off. fn must not keep the slice.
type lineSplitter struct {
	fn   func(line []byte, cut int)
	line []byte
	cut  int
	end  []byte // while fn runs: the last bytes of a line that was cut
	open bool   // a line has begun
}

// Write implements io.Writer; it never fails.
func (s *lineSplitter) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		chunk, rest, ends := bytes.Cut(p, []byte{'\n'})
		s.open = true
		if len(s.line) == 0 && ends && len(chunk) <= maxLine && s.cut == 0 {
			s.emit(chunk) // the common case needs no copy
		} else {
			keep := min(len(chunk), maxLine-len(s.line))
			s.line = append(s.line, chunk[:keep]...)
			s.cut += len(chunk) - keep
			s.end = lastBytes(append(s.end, chunk[keep:]...))
			if ends {
				s.emit(s.line)
			}
		}
		p = rest
	}
	return n, nil
}

func (s *lineSplitter) emit(line []byte) {
	cut := s.cut
	s.line, s.cut, s.open = s.line[:0], 0, false
	s.fn(bytes.TrimSuffix(line, []byte{'\r'}), cut)
	s.end = s.end[:0]
}

// lastBytes moves the last maxLineEnd bytes to the front, once there are many more.
func lastBytes(b []byte) []byte {
	if len(b) <= 2*maxLineEnd {
		return b
	}
	return append(b[:0], b[len(b)-maxLineEnd:]...)
}

// flush passes on a last line that has no newline.
func (s *lineSplitter) flush() {
	if s.open {
		s.emit(s.line)
	}
}

// drain feeds the splitter until the reader ends, and flushes it.
func (s *lineSplitter) drain(r io.Reader) {
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		_, _ = s.Write(buf[:n])
		if err != nil {
			s.flush()
			return
		}
	}
}
