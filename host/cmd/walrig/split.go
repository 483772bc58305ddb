package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"

	"github.com/walrig/walrig/sdk/walimpls"
)

const (
	// askLimitAt is the length from which a record's size is compared with the
	// backend's limit, which has to be asked for then.
	askLimitAt = 256 << 10
	// fallbackLimit bounds a record if the backend's limit cannot be asked for.
	fallbackLimit = 64 << 20
	splitBuffer   = 256 << 10
	arenaBlock    = 64 << 10
)

// splitter cuts an input into records at a delimiter. An empty piece is an
// empty record; a last piece without delimiter counts unless it is empty.
type splitter struct {
	r *bufio.Reader
	// whole makes one record of the entire input, however it looks.
	whole bool
	delim byte
	// limit returns the most bytes that a record may have. It is asked once,
	// when a record passes askLimitAt.
	limit func() int64
	known int64
	// line is the number of the record that next returned last, from 1.
	line int64
	// channel is for the error.
	channel string
	arena   []byte
	done    bool
}

func newSplitter(r io.Reader, delim byte, whole bool, channel string, limit func() int64) *splitter {
	return &splitter{r: bufio.NewReaderSize(r, splitBuffer), delim: delim, whole: whole, channel: channel, limit: limit}
}

// next returns the next record, which belongs to the caller. It ends with
// io.EOF. A record above the limit is ErrTooLarge and ends the splitter: what
// follows was not read.
func (s *splitter) next() ([]byte, error) {
	if s.done {
		return nil, io.EOF
	}
	var long []byte
	for {
		piece, err := s.r.ReadSlice(s.delim)
		ended := err == nil && !s.whole
		if ended {
			piece = piece[:len(piece)-1]
		}
		switch {
		case ended && long == nil:
			s.line++
			return s.own(piece), nil
		case err != nil && !errors.Is(err, bufio.ErrBufferFull) && !errors.Is(err, io.EOF):
			s.done = true
			return nil, err
		}
		if err := s.check(int64(len(long)) + int64(len(piece))); err != nil {
			s.done = true
			s.line++
			return nil, err
		}
		long = append(long, piece...)
		if errors.Is(err, io.EOF) {
			s.done = true
			if len(long) == 0 && !s.whole {
				return nil, io.EOF
			}
			ended = true
		}
		if ended {
			s.line++
			return long, nil
		}
	}
}

func (s *splitter) check(size int64) error {
	if size <= askLimitAt {
		return nil
	}
	if s.known == 0 {
		s.known = s.limit()
	}
	if size <= s.known {
		return nil
	}
	e := walimpls.Errorf(walimpls.CodeTooLarge, s.channel, "the record is larger than %s, the most that the backend takes", bytesText(s.known))
	e.Hint = "split the record, or use a backend with a higher limit"
	return e
}

// own copies a short record out of the read buffer, many into one block.
func (s *splitter) own(piece []byte) []byte {
	if len(piece) > arenaBlock/4 {
		return bytes.Clone(piece)
	}
	if len(piece) > cap(s.arena)-len(s.arena) {
		s.arena = make([]byte, 0, arenaBlock)
	}
	start := len(s.arena)
	s.arena = append(s.arena, piece...)
	return s.arena[start:len(s.arena):len(s.arena)]
}

// waits reports whether next would have to read from the input.
func (s *splitter) waits() bool {
	buffered, _ := s.r.Peek(s.r.Buffered())
	return bytes.IndexByte(buffered, s.delim) < 0
}
