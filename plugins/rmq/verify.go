package rmq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// Report is what Verify found in a store's folder.
type Report struct {
	Dir      string          `json:"dir"`
	Format   int             `json:"format"`
	Segments []SegmentReport `json:"segments"`
	Channels []ChannelReport `json:"channels"`
	// Problems are damages that live records or the store's state suffer from.
	Problems []ProblemReport `json:"problems"`
	// Residue are damaged bytes that nothing needs any more.
	Residue []ProblemReport `json:"residue"`
	// Cuts are the records that a repair gives up. It keeps all others.
	Cuts []CutReport `json:"cuts"`
	// Repairable is false when a repair would have to guess.
	Repairable bool `json:"repairable"`
	// TornTail is the position in the active segment from which on the next
	// opening cuts off what was never acknowledged; -1 if there is nothing.
	TornTail int64 `json:"torn_tail"`
}

// SegmentReport is one file of the store's log.
type SegmentReport struct {
	File    string `json:"file"`
	State   string `json:"state"` // finished, active, prepared or spare
	Bytes   int64  `json:"bytes"`
	Used    int64  `json:"used"`
	Frames  int    `json:"frames"`
	Records int64  `json:"records"`
}

// ChannelReport is one log; ids are in the text form.
type ChannelReport struct {
	Channel     string `json:"channel"`
	StoreID     string `json:"store_id"`
	Term        int64  `json:"term"`
	Incarnation int64  `json:"incarnation"`
	Earliest    uint64 `json:"earliest"`
	Latest      uint64 `json:"latest"`
}

// ProblemReport is one damage.
type ProblemReport struct {
	File     string `json:"file"`
	Position int64  `json:"position"`
	Bytes    int64  `json:"bytes"`
	Channel  string `json:"channel"`
	First    uint64 `json:"first"`
	Last     uint64 `json:"last"`
	Why      string `json:"why"`
	// Fatal: the store cannot be opened.
	Fatal bool `json:"fatal"`
}

// CutReport is a range of records that a repair gives up.
type CutReport struct {
	Channel string `json:"channel"`
	First   uint64 `json:"first"`
	Last    uint64 `json:"last"`
}

// Damaged reports whether anything needs a repair.
func (r Report) Damaged() bool { return len(r.Problems) > 0 }

// Verify checks every byte of the store in dir and changes nothing. The store
// must not be in use: it is ErrUnavailable while a process holds its folder. A
// damaged store is no error, it is what the report says; errors are those of
// the file system, a folder that is no store, and a format that this build does
// not read.
func Verify(ctx context.Context, dir string) (Report, error) {
	return withFolder(ctx, vfs.Default, dir, func(f vfs.FS) (Report, error) {
		r, _, err := verify(ctx, f, dir)
		return r, err
	})
}

// withFolder runs a tool while nobody else can use the store.
func withFolder(ctx context.Context, f vfs.FS, dir string, tool func(vfs.FS) (Report, error)) (Report, error) {
	ready, err := inspectFolder(f, dir)
	if err != nil {
		return Report{}, err
	}
	if !ready {
		return Report{}, foreignError(dir, "there is none")
	}
	ctx, cancel := context.WithTimeout(ctx, toolPatience)
	defer cancel()
	lock, err := lockFolder(ctx, settings{fs: f, dir: dir})
	if err != nil {
		return Report{}, err
	}
	defer lock.Close()
	return tool(f)
}

// toolPatience is how long a tool waits for a process that is on its way out.
const toolPatience = 2 * time.Second

func verify(ctx context.Context, f vfs.FS, dir string) (Report, *contents, error) {
	log := f.PathJoin(dir, logName)
	fail := func(err error) (Report, *contents, error) {
		return Report{}, nil, storeError("", fmt.Sprintf("verify %q", dir), err)
	}
	c, err := readStore(f, log)
	if err != nil {
		return fail(err)
	}
	r := Report{Dir: dir, Format: formatVersion, TornTail: -1, Repairable: true,
		Segments: []SegmentReport{}, Channels: []ChannelReport{}, Problems: []ProblemReport{}, Residue: []ProblemReport{}, Cuts: []CutReport{}}
	found := slices.DeleteFunc(slices.Clone(c.problems), func(p problem) bool {
		return !p.fatal && p.channel == "" // the whole reading below finds it again
	})
	for i, g := range c.segments {
		if err := ctx.Err(); err != nil {
			return fail(err)
		}
		active := i == len(c.segments)-1
		b := c.bytes
		if !active {
			if b, err = readFull(f, g.path); err != nil {
				return fail(err)
			}
		}
		sr, problems := c.verifySegment(g, b, active)
		r.Segments = append(r.Segments, sr)
		found = append(found, problems...)
	}
	if c.active.torn && len(c.segments) > 0 && anyOf(c.bytes[c.active.end:], c.segments[len(c.segments)-1].num) {
		r.TornTail = c.active.end
	}
	for _, num := range c.unstarted {
		r.Segments = append(r.Segments, c.other(f, log, segmentName(num), "prepared"))
	}
	for _, name := range c.spares {
		r.Segments = append(r.Segments, c.other(f, log, name, "spare"))
	}
	c.judge(&r, found)
	for _, row := range c.sortedRows() {
		r.Channels = append(r.Channels, ChannelReport{Channel: row.name, StoreID: row.storeID, Term: row.pair.Term, Incarnation: row.pair.Incarnation, Earliest: row.first, Latest: row.next - 1})
	}
	return r, c, nil
}

// anyOf reports whether a header of the segment lies in b, wherever b was:
// old bytes of a segment that is used again are no torn tail.
func anyOf(b []byte, num uint64) bool {
	for pos := 0; pos+frameHeaderLen <= len(b); pos += frameAlign {
		if le := b[pos+8 : pos+16]; uint64(le[0])|uint64(le[1])<<8|uint64(le[2])<<16|uint64(le[3])<<24 == num && b[pos+31] < byte(frameKinds) && b[pos+31] > 0 {
			return true
		}
	}
	return false
}

func (c *contents) other(f vfs.FS, log, name, state string) SegmentReport {
	sr := SegmentReport{File: f.PathJoin(log, name), State: state}
	if info, err := f.Stat(sr.File); err == nil {
		sr.Bytes = info.Size()
	}
	return sr
}

// verifySegment reads all frames and records of a segment.
func (c *contents) verifySegment(g *segment, b []byte, active bool) (SegmentReport, []problem) {
	sr := SegmentReport{File: g.path, State: "finished", Bytes: int64(len(b))}
	limit := g.end
	if active {
		sr.State, limit = "active", -1
	}
	scan := scanSegment(b, g.num, limit)
	sr.Used, sr.Frames = scan.end, len(scan.frames)
	var problems []problem
	there := &segment{num: g.num}
	at := int64(0) // of the first header that is lost
	for _, d := range scan.damage {
		if d.header && !active {
			if at == 0 {
				at = d.pos
			}
			problems = append(problems, problem{path: g.path, pos: d.pos, size: d.size, why: d.why})
		}
	}
	for i := range scan.frames {
		p := &scan.frames[i]
		if !p.kind.records() {
			if p.broken && !active {
				problems = append(problems, problem{path: g.path, pos: p.pos, size: p.size(), why: "the checksum does not fit"})
			}
			continue
		}
		sr.Records += int64(p.count)
		there.add(&p.frame, p.pos)
		bad := func(why string, first, last uint64) {
			problems = append(problems, problem{path: g.path, pos: p.pos, size: p.size(), channel: c.nameOf(p.log), ids: idRange{first, last}, why: why})
		}
		switch {
		case p.broken:
			bad("the checksum does not fit", p.first, p.last())
		case p.kind == frameData || p.kind == frameMovedData:
			for n := range p.count {
				id := p.first + uint64(n)
				if record, ok := p.recordAt(p.bodyOf(b), n); !ok {
					bad("the table of records does not fit", id, id)
				} else if _, err := message.DecodeRecord(record); err != nil {
					bad(err.Error(), id, id)
				}
			}
		}
	}
	// What the index promises and no frame holds.
	held := map[uint64][]*run{}
	for _, r := range there.runs {
		held[r.log] = append(held[r.log], r)
	}
	for num := range held {
		held[num] = resolveRuns(held[num])
	}
	for _, r := range g.runs {
		for _, part := range subtract(r, held[r.log]) {
			problems = append(problems, problem{path: g.path, pos: at, channel: c.nameOf(r.log), ids: idRange{part.first, part.last},
				why: "the records that the index names are not there"})
		}
	}
	return sr, problems
}

func (c *contents) nameOf(num uint64) string {
	if r := c.rows.logs[num]; r != nil {
		return r.name
	}
	return ""
}

func (c *contents) sortedRows() []*row {
	var out []*row
	for _, r := range c.rows.logs {
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b *row) int { return strings.Compare(a.name, b.name) })
	return out
}

// judge sorts what was found into problems and residue, and works out the cuts:
// the live records that cannot be read.
func (c *contents) judge(r *Report, found []problem) {
	lost := map[string][]idRange{}
	seen := map[problem]bool{}
	fatal := false
	for _, p := range found {
		key := p
		key.why = ""
		if seen[key] {
			continue
		}
		seen[key] = true
		report := ProblemReport{File: p.path, Position: p.pos, Bytes: p.size, Channel: p.channel, First: p.ids.first, Last: p.ids.last, Why: p.why, Fatal: p.fatal}
		needed := p.fatal
		if p.channel != "" {
			for _, part := range c.needed(p) {
				needed = true
				lost[p.channel] = append(lost[p.channel], part)
			}
		}
		if !needed {
			r.Residue = append(r.Residue, report)
			continue
		}
		fatal = fatal || p.fatal
		r.Problems = append(r.Problems, report)
	}
	if fatal && (len(c.active.frames) == 0 || c.unsure) {
		r.Repairable = false
	}
	for _, row := range c.sortedRows() {
		for _, cut := range merge(lost[row.name]) {
			r.Cuts = append(r.Cuts, CutReport{Channel: row.name, First: cut.first, Last: cut.last})
		}
	}
}

// needed returns the records of a problem that readers are sent to, or that no
// segment holds.
func (c *contents) needed(p problem) []idRange {
	var row *row
	for _, r := range c.rows.logs {
		if r.name == p.channel {
			row = r
		}
	}
	if row == nil {
		return nil
	}
	var out []idRange
	first, last := max(p.ids.first, row.first), min(p.ids.last, row.next-1)
	for id := first; id <= last && id != 0; {
		if next, ok := row.lostAt(id); ok {
			id = next
			continue
		}
		found := findRun(c.runs[row.num], id)
		end := id
		if found != nil {
			end = min(found.last, last)
		}
		if found == nil || found.segment.path == p.path {
			out = append(out, idRange{id, end})
		}
		id = end + 1
	}
	return merge(out)
}

// merge sorts ranges and joins those that touch.
func merge(ranges []idRange) []idRange {
	slices.SortFunc(ranges, func(a, b idRange) int {
		switch {
		case a.first < b.first:
			return -1
		case a.first > b.first:
			return 1
		}
		return 0
	})
	var out []idRange
	for _, r := range ranges {
		if n := len(out); n > 0 && r.first <= out[n-1].last+1 {
			out[n-1].last = max(out[n-1].last, r.last)
			continue
		}
		out = append(out, r)
	}
	return out
}

// Repair makes a damaged store usable again. It first copies the whole folder
// to backup, which must not exist, and syncs the copy; then it writes down
// which records are given up (the report's Cuts), so that readers step over
// them, and begins a new segment with the state of all logs. It deletes no
// segment. The report is the one from before; a store without problems is left
// alone, without a copy.
func Repair(ctx context.Context, dir, backup string) (Report, error) {
	return withFolder(ctx, vfs.Default, dir, func(f vfs.FS) (Report, error) { return repair(ctx, f, dir, backup) })
}

func repair(ctx context.Context, f vfs.FS, dir, backup string) (Report, error) {
	r, c, err := verify(ctx, f, dir)
	if err != nil || !r.Damaged() {
		return r, err
	}
	if !r.Repairable {
		e := walimpls.Errorf(walimpls.CodeCorrupt, "", "repair %q: the state of its logs is lost with the newest segment, and a repair would have to guess", dir)
		e.Hint = "restore the folder from a copy"
		return r, e
	}
	if err := copyFolder(ctx, f, dir, backup); err != nil {
		return r, storeError("", fmt.Sprintf("copy %q to %q before the repair", dir, backup), err)
	}
	for _, cut := range r.Cuts {
		for _, row := range c.rows.logs {
			if row.name == cut.Channel {
				row.lost = merge(append(row.lost, idRange{cut.First, cut.Last}))
			}
		}
	}
	if err := writeRepaired(f, f.PathJoin(dir, logName), c); err != nil {
		return r, storeError("", fmt.Sprintf("repair %q", dir), err)
	}
	return r, nil
}

// writeRepaired begins a segment behind all others that holds the repaired state.
func writeRepaired(f vfs.FS, log string, c *contents) error {
	active := c.segments[len(c.segments)-1]
	num := active.num + 1
	for _, n := range c.unstarted {
		num = max(num, n+1)
	}
	set := newSegmentSet(f, log)
	g := set.newSegment(num, 0)
	file, err := f.Create(g.path, writeCategory)
	if err != nil {
		return err
	}
	rows := c.sortedRows()
	w := writer{}
	w.into(&prepared{segment: g, file: file}, func(b []byte) []byte {
		return snapshot{prevSegment: active.num, prevEnd: active.end, state: c.rows}.encode(b, func(yield func(*row)) {
			for _, r := range rows {
				yield(r)
			}
		})
	})
	w.opening()
	if err = w.write(); err == nil {
		w.synced = w.end
		err = file.Sync()
	}
	return errors.Join(err, file.Close(), syncFolder(f, log))
}

// copyFolder copies a store to a folder that does not exist yet, and syncs it.
func copyFolder(ctx context.Context, f vfs.FS, from, to string) error {
	if _, err := f.Stat(to); !isNotExist(err) {
		if err == nil {
			err = fmt.Errorf("%q exists already", to)
		}
		return err
	}
	if err := makeFolder(f, to); err != nil {
		return err
	}
	names, err := f.List(from)
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return err
		}
		source, target := f.PathJoin(from, name), f.PathJoin(to, name)
		info, err := f.Stat(source)
		switch {
		case isNotExist(err) || name == lockName:
			continue
		case err != nil:
			return err
		case info.IsDir():
			err = copyFolder(ctx, f, source, target)
		default:
			err = copyFile(f, source, target)
		}
		if err != nil && !isNotExist(err) {
			return err
		}
	}
	return syncFolder(f, to)
}

func copyFile(f vfs.FS, from, to string) error {
	source, err := f.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := f.Create(to, writeCategory)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{target}, struct{ io.Reader }{source}, make([]byte, 1<<20))
	if err == nil {
		err = target.Sync()
	}
	return errors.Join(err, target.Close())
}
