package rmq

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// problem is one thing that is wrong with what a store's folder holds.
type problem struct {
	path    string // of the file, "" if there is none
	pos     int64
	size    int64
	channel string // whose records it concerns, "" if that is not known
	ids     idRange
	why     string
	// fatal: what the damaged place said about any log is not known, so the
	// store is not opened.
	fatal bool
}

func (p problem) Error() string {
	var b strings.Builder
	if p.path != "" {
		fmt.Fprintf(&b, "%q at position %d: ", p.path, p.pos)
	}
	b.WriteString(p.why)
	if p.channel != "" {
		fmt.Fprintf(&b, " (records %d to %d of %q)", p.ids.first, p.ids.last, p.channel)
	}
	return b.String()
}

func (p problem) Unwrap() error { return errDamaged }

// contents is what the files of a store say. Reading it changes nothing.
type contents struct {
	segments []*segment // that records were committed to, ascending; the last is active
	rows     *rows
	active   scanned
	bytes    []byte // of the active segment
	runs     map[uint64][]*run
	// unstarted are segments prepared for what comes next; spares are files
	// that wait for it.
	unstarted []uint64
	spares    []string
	problems  []problem
	// unsure: the state of the logs is not known.
	unsure bool
}

// fatal returns the first problem that keeps the store from being opened.
func (c *contents) fatal() error {
	for _, p := range c.problems {
		if p.fatal {
			return p
		}
	}
	return nil
}

func (c *contents) report(p problem) { c.problems = append(c.problems, p) }

// readStore reads what the folder holds. An error is one of the file system;
// damage is in the result.
func readStore(f vfs.FS, dir string) (*contents, error) {
	c := &contents{rows: newRows(), runs: map[uint64][]*run{}}
	names, err := f.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return nil, err
	}
	var nums []uint64
	indexed := map[uint64]bool{}
	for _, name := range names {
		base, suffix, _ := strings.Cut(name, ".")
		num, err := strconv.ParseUint(base, 10, 64)
		if err != nil || num == 0 {
			continue
		}
		switch suffix {
		case "seg":
			nums = append(nums, num)
		case "idx":
			indexed[num] = true
		case "free":
			c.spares = append(c.spares, name)
		}
	}
	slices.Sort(nums)
	slices.Sort(c.spares)
	set := newSegmentSet(f, dir)
	nums, err = c.readActive(set, nums)
	if err != nil {
		return nil, err
	}
	if len(c.segments) == 0 {
		for num := range indexed {
			c.report(problem{path: set.newSegment(num, 0).path, why: "the segment is missing, its index is there", fatal: true})
		}
		return c, nil
	}
	active := c.segments[0]
	if indexed[active.num] {
		// An index is written after the next segment was begun, durably.
		c.report(problem{path: set.newSegment(active.num+1, 0).path, why: "the segment is missing; the one before it is finished", fatal: true})
		c.unsure = true
	}
	snap := c.replay(active)
	var older []*segment
	for _, num := range nums {
		g, err := c.readSealed(set, num, indexed[num], snap)
		if err != nil {
			return nil, err
		}
		older = append(older, g)
	}
	c.segments = append(older, active)
	c.resolve()
	return c, nil
}

// readActive finds the newest segment that anything was committed to, and
// returns the numbers of those before it.
func (c *contents) readActive(set *segmentSet, nums []uint64) ([]uint64, error) {
	for i := len(nums) - 1; i >= 0; i-- {
		g := set.newSegment(nums[i], 0)
		b, err := readFull(set.fs, g.path)
		if err != nil {
			return nil, fmt.Errorf("read %q: %w", g.path, err)
		}
		g.size = int64(len(b))
		scan := scanSegment(b, g.num, -1)
		if !scan.started() {
			c.unstarted = append(c.unstarted, g.num)
			continue
		}
		g.end = scan.end
		c.segments, c.active, c.bytes = []*segment{g}, scan, b
		return nums[:i], nil
	}
	return nil, nil
}

// replay applies the active segment's frames to the state that it begins with.
func (c *contents) replay(active *segment) snapshot {
	var snap snapshot
	report := func(pos int64, why string, fatal bool) {
		c.report(problem{path: active.path, pos: pos, why: why, fatal: fatal})
	}
	for _, d := range c.active.damage {
		if d.header {
			c.report(problem{path: active.path, pos: d.pos, size: d.size, why: d.why, fatal: true})
		}
	}
	for i := range c.active.frames {
		p := &c.active.frames[i]
		body := p.bodyOf(c.bytes)
		switch {
		case i == 0 && p.kind != frameSnapshot:
			report(0, "the segment does not begin with a snapshot", true)
			c.unsure = true
		case p.kind == frameSnapshot && (p.broken || i > 0):
			report(p.pos, "the snapshot is damaged", true)
			c.unsure = true
			continue
		case p.kind == frameSnapshot:
			var err error
			if snap, err = decodeSnapshot(body); err != nil {
				report(p.pos, err.Error(), true)
				c.unsure = true
				continue
			}
			c.rows = snap.state
		case p.kind == frameCreate && p.broken:
			report(p.pos, "the row of a new log is damaged", true)
			c.unsure = true
			continue
		}
		if err := c.rows.apply(&p.frame, body); err != nil {
			report(p.pos, err.Error(), true)
			c.unsure = c.unsure || c.rows.logs[p.log] == nil
			// Go on from what the frame says, for whoever wants to see the rest.
			if r := c.rows.logs[p.log]; r != nil && (p.kind == frameData || p.kind == frameFence) && p.first > r.next {
				r.next, r.pair = p.last()+1, p.pair
				if p.kind == frameData {
					r.lastRecord = p.last()
				}
			}
		}
		if p.kind.records() {
			active.add(&p.frame, p.pos)
			c.noteBroken(active, p)
		}
	}
	return snap
}

func (c *contents) noteBroken(g *segment, p *placed) {
	if !p.broken {
		return
	}
	d := problem{path: g.path, pos: p.pos, size: p.size(), why: "the checksum does not fit", ids: idRange{p.first, p.last()}}
	if r := c.rows.logs[p.log]; r != nil {
		d.channel = r.name
	}
	c.report(d)
}

// readSealed learns what a finished segment holds, from its index or itself.
func (c *contents) readSealed(set *segmentSet, num uint64, indexed bool, snap snapshot) (*segment, error) {
	g := set.newSegment(num, 0)
	info, err := set.fs.Stat(g.path)
	if err != nil {
		return nil, fmt.Errorf("look at %q: %w", g.path, err)
	}
	g.size = info.Size()
	if indexed {
		end, runs, err := readIndex(set.fs, set.fs.PathJoin(set.dir, indexName(num)), num)
		if err == nil {
			g.end, g.runs, g.indexed = end, runs, true
			for _, r := range runs {
				r.segment = g
			}
			return g, nil
		}
		if !errors.Is(err, errDamaged) {
			return nil, fmt.Errorf("read the index of %q: %w", g.path, err)
		}
	}
	limit := int64(-1)
	if num == snap.prevSegment {
		limit = snap.prevEnd
	}
	b, err := readFull(set.fs, g.path)
	if err != nil {
		return nil, fmt.Errorf("read %q: %w", g.path, err)
	}
	c.scanSealed(g, b, limit)
	return g, nil
}

// scanSealed reads a finished segment whole.
func (c *contents) scanSealed(g *segment, b []byte, limit int64) {
	scan := scanSegment(b, g.num, limit)
	g.end, g.damage, g.runs, g.open = scan.end, scan.damage, nil, nil
	for _, d := range scan.damage {
		if d.header {
			c.report(problem{path: g.path, pos: d.pos, size: d.size, why: d.why})
		}
	}
	for i := range scan.frames {
		p := &scan.frames[i]
		if p.kind.records() {
			g.add(&p.frame, p.pos)
			c.noteBroken(g, p)
		}
	}
	g.open = nil
}

// resolve brings the segments' runs into one order per log, and looks for
// records that none of them holds.
func (c *contents) resolve() {
	for _, g := range c.segments {
		for _, r := range g.runs {
			if row := c.rows.logs[r.log]; row != nil && r.last >= row.first && r.first < row.next {
				c.runs[r.log] = append(c.runs[r.log], r)
			}
		}
	}
	nums := make([]uint64, 0, len(c.rows.logs))
	for num := range c.rows.logs {
		nums = append(nums, num)
	}
	slices.Sort(nums)
	for _, num := range nums {
		row := c.rows.logs[num]
		c.runs[num] = without(resolveRuns(c.runs[num]), row.lost)
		for _, hole := range row.holes(c.runs[num]) {
			c.report(problem{path: c.nearest(c.runs[num], hole), channel: row.name, ids: hole, why: "no segment holds the records"})
		}
	}
}

// nearest names the segment that should hold the records of a hole: the one
// with the records before it, or the first.
func (c *contents) nearest(runs []*run, hole idRange) string {
	path := c.segments[0].path
	for _, r := range runs {
		if r.first < hole.first {
			path = r.segment.path
		}
	}
	return path
}

// holes returns the ids between the log's ends that no run holds and no repair
// gave up.
func (r *row) holes(runs []*run) []idRange {
	var out []idRange
	id := r.first
	for id < r.next {
		if found := findRun(runs, id); found != nil {
			id = found.last + 1
			continue
		}
		if next, ok := r.lostAt(id); ok {
			id = next
			continue
		}
		end := r.next - 1
		for _, run := range runs {
			if run.first > id {
				end = min(end, run.first-1)
				break
			}
		}
		for _, l := range r.lost {
			if l.first > id {
				end = min(end, l.first-1)
				break
			}
		}
		out = append(out, idRange{id, end})
		id = end + 1
	}
	return out
}
