package rmq

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// frameRef is where the frame that begins with record first lies, in units of
// frameAlign.
type frameRef struct {
	first     uint64
	pos, size uint32
}

// run is a stretch of one log's records, without holes, in one segment.
type run struct {
	log         uint64
	segment     *segment
	first, last uint64
	bytes       int64 // of its frames
	// frames are its frames in order; nil once the segment's index file has
	// them, at the place that list says.
	frames []frameRef
	list   listPlace
}

// listPlace is where an index file holds a run's frames.
type listPlace struct {
	first  uint64 // the first id of the whole run; this one may be narrower
	offset int64
	length int
	count  int
	sum    uint32
}

// segment is one file of the store's log.
type segment struct {
	num  uint64
	path string

	// Guarded by segmentSet.mu.
	size    int64 // of the file
	end     int64 // of the last durable frame
	runs    []*run
	open    map[openRun]*run // the runs that frames may still join; of the active segment only
	file    vfs.File         // for reading; nil while nobody did
	readers int
	dead    bool
	indexed bool // its index file is written
	damage  []damage
}

// openRun names a run that may grow: moved copies and new records of one log
// never share a run, because readers are sent to them at different times.
type openRun struct {
	log   uint64
	moved bool
}

// segmentSet is the segments of a store and which records they hold. Its lock
// is held for short looks only, never during a file operation but the opening
// of a file for reading.
type segmentSet struct {
	fs  vfs.FS
	dir string

	mu   sync.RWMutex // guards what follows, the segments' fields, and logState.runs
	list []*segment   // ascending; the last one is active
	// opened counts the files that are open for reading.
	opened int
}

// maxOpenSegments bounds the files that are kept open for reading.
const maxOpenSegments = 128

func segmentName(num uint64) string { return fmt.Sprintf("%012d.seg", num) }
func indexName(num uint64) string   { return fmt.Sprintf("%012d.idx", num) }
func spareName(num uint64) string   { return fmt.Sprintf("%012d.free", num) }

func newSegmentSet(fs vfs.FS, dir string) *segmentSet { return &segmentSet{fs: fs, dir: dir} }

func (s *segmentSet) newSegment(num uint64, size int64) *segment {
	return &segment{num: num, path: s.fs.PathJoin(s.dir, segmentName(num)), size: size}
}

// add notes a frame of records that became durable in the segment. It returns
// the run that the frame began, nil if it made an earlier one longer. The
// caller holds s.mu, or nobody else knows the segment yet.
func (g *segment) add(f *frame, pos int64) *run {
	if g.open == nil {
		g.open = make(map[openRun]*run)
	}
	ref := frameRef{first: f.first, pos: uint32(pos / frameAlign), size: uint32(f.size() / frameAlign)}
	key := openRun{f.log, f.kind == frameMovedData || f.kind == frameMovedFence}
	r := g.open[key]
	if r != nil && r.last+1 == f.first {
		r.last = f.last()
		r.frames = append(r.frames, ref)
		r.bytes += f.size()
		return nil
	}
	r = &run{log: f.log, segment: g, first: f.first, last: f.last(), bytes: f.size(), frames: []frameRef{ref}}
	g.open[key] = r
	g.runs = append(g.runs, r)
	return r
}

// acquireLocked keeps the segment's file from being used for anything else
// until release, and returns it open for reading.
func (s *segmentSet) acquireLocked(g *segment) (vfs.File, error) {
	if g.dead {
		return nil, errors.New("the segment was given back")
	}
	if g.file == nil {
		if s.opened >= maxOpenSegments {
			s.closeIdleLocked()
		}
		file, err := s.fs.Open(g.path, vfs.RandomReadsOption)
		if err != nil {
			return nil, err
		}
		g.file = file
		s.opened++
	}
	g.readers++
	return g.file, nil
}

func (s *segmentSet) release(g *segment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g.readers--
}

func (s *segmentSet) closeIdleLocked() {
	for _, g := range s.list {
		if g.file != nil && g.readers == 0 {
			_ = g.file.Close()
			g.file = nil
			s.opened--
		}
	}
}

// close closes all files; nobody reads any more.
func (s *segmentSet) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closeIdleLocked()
}

// findRun returns the run of runs (sorted, without overlap) that holds id.
func findRun(runs []*run, id uint64) *run {
	i := sort.Search(len(runs), func(i int) bool { return runs[i].last >= id })
	if i == len(runs) || runs[i].first > id {
		return nil
	}
	return runs[i]
}

// resolveRuns makes one gapless order of the runs of a log that overlap: of two
// copies of a record the one in the later segment counts. The runs come in the
// order of their segments.
func resolveRuns(runs []*run) []*run {
	var out []*run
	for i := len(runs) - 1; i >= 0; i-- {
		out = append(out, subtract(runs[i], out)...)
		slices.SortFunc(out, compareRuns)
	}
	return out
}

// without returns the runs (sorted) without the records of some ranges.
func without(runs []*run, lost []idRange) []*run {
	if len(lost) == 0 {
		return runs
	}
	taken := make([]*run, len(lost))
	for i, l := range lost {
		taken[i] = &run{first: l.first, last: l.last}
	}
	var out []*run
	for _, r := range runs {
		out = append(out, subtract(r, taken)...)
	}
	return out
}

func compareRuns(a, b *run) int {
	switch {
	case a.first < b.first:
		return -1
	case a.first > b.first:
		return 1
	}
	return 0
}

// subtract returns the parts of r that no run of taken (sorted) holds.
func subtract(r *run, taken []*run) []*run {
	var out []*run
	from := r.first
	i := sort.Search(len(taken), func(i int) bool { return taken[i].last >= r.first })
	for ; i < len(taken) && taken[i].first <= r.last; i++ {
		if taken[i].first > from {
			out = append(out, r.part(from, taken[i].first-1))
		}
		from = taken[i].last + 1
	}
	switch {
	case from == r.first:
		return []*run{r}
	case from <= r.last:
		out = append(out, r.part(from, r.last))
	}
	return out
}

// part returns the run narrowed to some of its records.
func (r *run) part(first, last uint64) *run {
	p := *r
	p.first, p.last = first, last
	p.bytes = max(1, int64(float64(r.bytes)*float64(last-first+1)/float64(r.last-r.first+1)))
	return &p
}

// liveBytes estimates what of the run's bytes belongs to records from first on.
func (r *run) liveBytes(first uint64) int64 {
	switch {
	case first <= r.first:
		return r.bytes
	case first > r.last:
		return 0
	}
	return max(1, int64(float64(r.bytes)*float64(r.last-first+1)/float64(r.last-r.first+1)))
}

// readFull reads all of a file.
func readFull(fs vfs.FS, path string) ([]byte, error) {
	file, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	b := make([]byte, info.Size())
	if len(b) == 0 {
		return b, nil
	}
	n, err := file.ReadAt(b, 0)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return b[:n], err
}
