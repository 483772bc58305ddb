package rmq

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// An index file says which records a finished segment holds and where, so that
// a store is opened without reading its segments. It is a cache: what is wrong
// with one is answered by reading the segment. See doc.go for the layout.
const (
	indexHeaderLen = 40
	indexFirstRead = 4096
	indexVersion   = 1
)

var indexMagic = [7]byte{'r', 'm', 'q', 'i', 'd', 'x', '\n'}

// encodeIndex returns the index file of a segment that ends at end, and the
// place of each run's list.
func encodeIndex(segment uint64, end int64, runs []*run) ([]byte, []listPlace) {
	var lists []byte
	places := make([]listPlace, len(runs))
	table := binary.AppendUvarint(nil, uint64(len(runs)))
	for i, r := range runs {
		begin := len(lists)
		first, pos := r.first, uint32(0)
		for _, f := range r.frames {
			lists = binary.AppendUvarint(lists, f.first-first)
			lists = binary.AppendUvarint(lists, uint64(f.pos-pos))
			lists = binary.AppendUvarint(lists, uint64(f.size))
			first, pos = f.first, f.pos
		}
		places[i] = listPlace{first: r.first, offset: int64(begin), length: len(lists) - begin, count: len(r.frames), sum: checksum(lists[begin:])}
		for _, v := range []uint64{r.log, r.first, r.last, uint64(r.bytes), uint64(len(r.frames)), uint64(places[i].length), uint64(places[i].sum)} {
			table = binary.AppendUvarint(table, v)
		}
	}
	b := make([]byte, indexHeaderLen, indexHeaderLen+len(table)+len(lists))
	copy(b[4:], indexMagic[:])
	b[11] = indexVersion
	binary.LittleEndian.PutUint64(b[16:], segment)
	binary.LittleEndian.PutUint64(b[24:], uint64(end))
	binary.LittleEndian.PutUint64(b[32:], uint64(len(table)))
	b = append(b, table...)
	binary.LittleEndian.PutUint32(b, checksum(b[4:]))
	for i := range places {
		places[i].offset += int64(len(b))
	}
	return append(b, lists...), places
}

// decodeIndex is the inverse for header and table; it never panics.
func decodeIndex(b []byte, segment uint64) (end int64, runs []*run, err error) {
	bad := func(what string) (int64, []*run, error) {
		return 0, nil, fmt.Errorf("%w: the index file: %s", errDamaged, what)
	}
	if len(b) < indexHeaderLen || [7]byte(b[4:11]) != indexMagic {
		return bad("its header")
	}
	if b[11] != indexVersion {
		return bad(fmt.Sprintf("version %d, this build reads version %d", b[11], indexVersion))
	}
	table := binary.LittleEndian.Uint64(b[32:])
	if table > uint64(len(b)-indexHeaderLen) {
		return bad("it is cut off")
	}
	head := b[:indexHeaderLen+int(table)]
	if checksum(head[4:]) != binary.LittleEndian.Uint32(b) || binary.LittleEndian.Uint64(b[16:]) != segment {
		return bad("its checksum")
	}
	end = int64(binary.LittleEndian.Uint64(b[24:]))
	d := fields{rest: head[indexHeaderLen:]}
	n := d.number()
	if n > table {
		return bad("its table")
	}
	offset := int64(len(head))
	for range n {
		r := &run{log: d.number(), first: d.number(), last: d.number(), bytes: int64(d.number())}
		r.list = listPlace{first: r.first, offset: offset, count: int(d.number()), length: int(d.number()), sum: uint32(d.number())}
		if d.bad || r.first == 0 || r.last < r.first || r.bytes < 0 || r.list.length < 0 || r.list.length > 1<<30 || r.list.count < 1 || r.list.count > r.list.length {
			return bad("its table")
		}
		offset += int64(r.list.length)
		runs = append(runs, r)
	}
	if d.bad || len(d.rest) > 0 || end < 0 {
		return bad("its table")
	}
	return end, runs, nil
}

// decodeList returns the frames of a run.
func decodeList(b []byte, place listPlace) ([]frameRef, error) {
	bad := fmt.Errorf("%w: the index file: a list", errDamaged)
	if len(b) != place.length || checksum(b) != place.sum || place.count > len(b) {
		return nil, bad
	}
	d := fields{rest: b}
	refs := make([]frameRef, 0, place.count)
	first, pos := place.first, uint32(0)
	for range place.count {
		first += d.number()
		pos += uint32(d.number())
		refs = append(refs, frameRef{first: first, pos: pos, size: uint32(d.number())})
	}
	if d.bad || len(d.rest) > 0 {
		return nil, bad
	}
	return refs, nil
}

// readIndex reads header and table of an index file.
func readIndex(fs vfs.FS, path string, segment uint64) (end int64, runs []*run, err error) {
	file, err := fs.Open(path)
	if err != nil {
		return 0, nil, err
	}
	defer file.Close()
	b := make([]byte, indexFirstRead)
	n, err := file.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, nil, err
	}
	b = b[:n]
	if n == indexFirstRead {
		if table := binary.LittleEndian.Uint64(b[32:]); table < 1<<30 && int(table)+indexHeaderLen > n {
			b = make([]byte, indexHeaderLen+int(table))
			if n, err = file.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
				return 0, nil, err
			}
			b = b[:n]
		}
	}
	return decodeIndex(b, segment)
}

// loadFrames returns the frames of a run that no longer has them in memory.
func (s *segmentSet) loadFrames(r *run) ([]frameRef, error) {
	file, err := s.fs.Open(s.fs.PathJoin(s.dir, indexName(r.segment.num)))
	if err == nil {
		defer file.Close()
		b := make([]byte, r.list.length)
		if _, err = file.ReadAt(b, r.list.offset); err == nil {
			var refs []frameRef
			if refs, err = decodeList(b, r.list); err == nil {
				return refs, nil
			}
		}
	}
	// The index is a cache: read the segment itself.
	b, readErr := readFull(s.fs, r.segment.path)
	if readErr != nil {
		return nil, errors.Join(err, readErr)
	}
	s.mu.RLock()
	end := r.segment.end
	s.mu.RUnlock()
	scan := scanSegment(b, r.segment.num, end)
	again := &segment{num: r.segment.num}
	for i := range scan.frames {
		f := &scan.frames[i]
		if f.kind.records() && f.log == r.log {
			again.add(&f.frame, f.pos)
		}
	}
	for _, found := range again.runs {
		if found.first <= r.first && r.first <= found.last {
			return found.frames, nil
		}
	}
	return nil, fmt.Errorf("%w: the records from %d on", errDamaged, r.first)
}
