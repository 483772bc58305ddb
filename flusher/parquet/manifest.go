package parquet

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// formatVersion is in every object that is not Parquet.
const formatVersion = 1

// defaultFanout bounds what one manifest or page lists itself. A manifest is
// rewritten at every flush and held in memory for every vchannel, so it is small;
// a million files take pages of four levels.
const defaultFanout = 32

// entry is one file that a manifest lists. The key follows from it.
type entry struct {
	At        position // the position of the manifest that the file was written for
	N         int      // counts the files of one flush
	FirstTick message.Tick
	LastTick  message.Tick
	Rows      int64
	Bytes     int64
}

// pageRef names one page: a level-0 page lists files, a page of a higher level
// lists pages of the level below. All are immutable. What is below a page was
// written for positions at or below its own.
type pageRef struct {
	At    position `json:"at"`
	Level int      `json:"level"`
	N     int      `json:"n"`
	Files int64    `json:"files,string"`
}

// page is the content of an index object.
type page struct {
	ref   pageRef
	files []entry   // level 0
	pages []pageRef // other levels
}

// manifest is what one vchannel holds: the files, and the checkpoint up to which
// the log is in them. The newest manifest alone counts; it lists its newest files
// itself and the others through pages.
type manifest struct {
	PChannel, StoreID, VChannel string
	Ref                         ref
	Parent                      position // zero: none
	Checkpoint                  message.Checkpoint
	Files, Rows, Bytes          int64 // sums over everything that it lists
	Swept                       position
	tail                        []entry
	levels                      [][]pageRef // oldest page first in each level
}

// next returns the manifest that follows m, and the pages that have to be
// stored before it. It does not change m.
func (m *manifest) next(at position, files []entry, cp message.Checkpoint, dropped bool, fanout int) (*manifest, []page) {
	n := *m
	n.Parent, n.Ref, n.Checkpoint = m.Ref.At, ref{At: at, Dropped: dropped}, cp
	n.tail = append(slices.Clone(m.tail), files...)
	n.levels = slices.Clone(m.levels)
	for _, f := range files {
		n.Files, n.Rows, n.Bytes = n.Files+1, n.Rows+f.Rows, n.Bytes+f.Bytes
	}
	var pages []page
	made := 0
	cut := func(level int, p page) pageRef {
		p.ref.At, p.ref.Level, p.ref.N = at, level, made
		made++
		pages = append(pages, p)
		return p.ref
	}
	var up []pageRef
	for len(n.tail) > fanout {
		full := slices.Clone(n.tail[:fanout])
		n.tail = slices.Clone(n.tail[fanout:])
		up = append(up, cut(0, page{files: full, ref: pageRef{Files: int64(fanout)}}))
	}
	for level := 0; len(up) > 0; level++ {
		if level == len(n.levels) {
			n.levels = append(n.levels, nil)
		}
		refs := append(slices.Clone(n.levels[level]), up...)
		up = nil
		for len(refs) > fanout {
			full := slices.Clone(refs[:fanout])
			refs = slices.Clone(refs[fanout:])
			p := page{pages: full}
			for _, r := range full {
				p.ref.Files += r.Files
			}
			up = append(up, cut(level+1, p))
		}
		n.levels[level] = refs
	}
	return &n, pages
}

// fileJSON is how a file is written down: the key for people and queries, and
// what the key does not say.
type fileJSON struct {
	Key       string `json:"key"`
	Rows      int64  `json:"rows,string"`
	Bytes     int64  `json:"bytes,string"`
	FirstTick uint64 `json:"first_tick,string"`
	LastTick  uint64 `json:"last_tick,string"`
	Term      int64  `json:"term,string"`
}

type checkpointJSON struct {
	StoreID string     `json:"store_id"`
	ID      message.ID `json:"id"`
	Term    int64      `json:"term,string"`
	Tick    uint64     `json:"tick,string"`
	Token   string     `json:"token"` // carries a checksum, and is what `walrig read --from cp:…` takes
}

type manifestJSON struct {
	Format     int            `json:"format"`
	PChannel   string         `json:"pchannel"`
	StoreID    string         `json:"store_id"`
	VChannel   string         `json:"vchannel"`
	At         position       `json:"at"`
	Parent     position       `json:"parent"`
	Dropped    bool           `json:"dropped"`
	Checkpoint checkpointJSON `json:"checkpoint"`
	FileCount  int64          `json:"file_count,string"`
	Rows       int64          `json:"rows,string"`
	Bytes      int64          `json:"bytes,string"`
	Swept      position       `json:"swept"`
	Pages      [][]pageRef    `json:"pages"`
	Files      []fileJSON     `json:"files"`
}

type pageJSON struct {
	Format int        `json:"format"`
	Pages  []pageRef  `json:"pages,omitempty"`
	Files  []fileJSON `json:"files,omitempty"`
}

// claim says what an owner found when it took the log over: the newest manifest
// of each vchannel. Manifests of earlier owners that are not named here do not count.
type claim struct {
	Format   int               `json:"format"`
	PChannel string            `json:"pchannel"`
	StoreID  string            `json:"store_id"`
	Term     int64             `json:"term,string"`
	Open     int64             `json:"open,string"`
	Writer   string            `json:"writer"`
	Newest   map[string]string `json:"newest"`
}

func encodeFiles(l layout, vchannel string, files []entry) []fileJSON {
	out := make([]fileJSON, len(files))
	for i, f := range files {
		out[i] = fileJSON{
			Key: l.file(vchannel, f), Rows: f.Rows, Bytes: f.Bytes,
			FirstTick: uint64(f.FirstTick), LastTick: uint64(f.LastTick), Term: f.At.Owner.Term,
		}
	}
	return out
}

func decodeFiles(l layout, vchannel string, in []fileJSON) ([]entry, error) {
	out := make([]entry, len(in))
	for i, f := range in {
		prefix := l.data(vchannel)
		if len(f.Key) < len(prefix) || f.Key[:len(prefix)] != prefix {
			return nil, fmt.Errorf("file %q is not below %q", f.Key, prefix)
		}
		e, ok := parseFileName(f.Key[len(prefix):])
		if !ok || uint64(e.FirstTick) != f.FirstTick || uint64(e.LastTick) != f.LastTick || f.Rows < 0 || f.Bytes < 0 {
			return nil, fmt.Errorf("file %q does not fit its fields", f.Key)
		}
		e.Rows, e.Bytes = f.Rows, f.Bytes
		out[i] = e
	}
	return out, nil
}

func (m *manifest) encode(l layout) []byte {
	cp := m.Checkpoint
	levels := m.levels
	if levels == nil {
		levels = [][]pageRef{}
	}
	return encodeJSON(manifestJSON{
		Format: formatVersion, PChannel: m.PChannel, StoreID: m.StoreID, VChannel: m.VChannel,
		At: m.Ref.At, Parent: m.Parent, Dropped: m.Ref.Dropped,
		Checkpoint: checkpointJSON{StoreID: cp.StoreID, ID: cp.ID, Term: cp.Term, Tick: uint64(cp.Tick), Token: cp.String()},
		FileCount:  m.Files, Rows: m.Rows, Bytes: m.Bytes, Swept: m.Swept,
		Pages: levels, Files: encodeFiles(l, m.VChannel, m.tail),
	})
}

func (p page) encode(l layout, vchannel string) []byte {
	return encodeJSON(pageJSON{Format: formatVersion, Pages: p.pages, Files: encodeFiles(l, vchannel, p.files)})
}

// encodeJSON panics on nothing that this package gives it: plain structs.
func encodeJSON(v any) []byte {
	data, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return nil // unreachable: no field of these types can fail
	}
	return append(data, '\n')
}

// decodeManifest reads a manifest and checks it against the name it was found under.
func decodeManifest(l layout, key manifestKey, data []byte) (*manifest, error) {
	var j manifestJSON
	if err := decodeJSON(data, &j, &j.Format); err != nil {
		return nil, err
	}
	m := &manifest{
		PChannel: j.PChannel, StoreID: j.StoreID, VChannel: j.VChannel, Ref: ref{At: j.At, Dropped: j.Dropped},
		Parent: j.Parent, Files: j.FileCount, Rows: j.Rows, Bytes: j.Bytes, Swept: j.Swept, levels: j.Pages,
	}
	if got := (manifestKey{m.PChannel, m.StoreID, m.VChannel, m.Ref}); got != key {
		return nil, fmt.Errorf("it is the manifest of %+v, not of %+v (is the file system case-insensitive?)", got, key)
	}
	cp, err := message.ParseCheckpoint(j.Checkpoint.Token)
	if err != nil {
		return nil, err
	}
	said := message.Checkpoint{StoreID: j.Checkpoint.StoreID, ID: j.Checkpoint.ID, Term: j.Checkpoint.Term, Tick: message.Tick(j.Checkpoint.Tick)}
	if cp != said {
		return nil, fmt.Errorf("its checkpoint's token and fields differ")
	}
	m.Checkpoint = cp
	if m.tail, err = decodeFiles(l, m.VChannel, j.Files); err != nil {
		return nil, err
	}
	count := int64(len(m.tail))
	for level, refs := range m.levels {
		for _, r := range refs {
			if r.Level != level || r.Files <= 0 {
				return nil, fmt.Errorf("page %+v is not of level %d", r, level)
			}
			count += r.Files
		}
	}
	if count != m.Files {
		return nil, fmt.Errorf("it counts %d files and lists %d", m.Files, count)
	}
	return m, nil
}

// manifestKey is everything that decides a manifest's name.
type manifestKey struct {
	PChannel, StoreID, VChannel string
	Ref                         ref
}

func decodePage(l layout, vchannel string, ref pageRef, data []byte) (page, error) {
	var j pageJSON
	if err := decodeJSON(data, &j, &j.Format); err != nil {
		return page{}, err
	}
	files, err := decodeFiles(l, vchannel, j.Files)
	if err != nil {
		return page{}, err
	}
	p := page{ref: ref, files: files, pages: j.Pages}
	count := int64(len(p.files))
	for _, r := range p.pages {
		if r.Level != ref.Level-1 || r.Files <= 0 {
			return page{}, fmt.Errorf("page %+v is listed on level %d", r, ref.Level)
		}
		count += r.Files
	}
	if count != ref.Files || (ref.Level == 0) != (len(p.pages) == 0) {
		return page{}, fmt.Errorf("it lists %d files, its parent says %d", count, ref.Files)
	}
	return p, nil
}

func decodeClaim(key string, o owner, data []byte) (*claim, error) {
	var c claim
	if err := decodeJSON(data, &c, &c.Format); err != nil {
		return nil, err
	}
	if c.Term != o.Term || c.Open != o.Open {
		return nil, fmt.Errorf("it is the claim of %d.%d, found as %s", c.Term, c.Open, key)
	}
	return &c, nil
}

func decodeJSON(data []byte, into any, format *int) error {
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("damaged JSON: %w", err)
	}
	if *format != formatVersion {
		return fmt.Errorf("format version %d, this build reads version %d: use the walrig that wrote it, or a newer one", *format, formatVersion)
	}
	return nil
}

func corrupt(pchannel, key string, err error) error {
	e := walimpls.Errorf(walimpls.CodeCorrupt, pchannel, "sink: object %q: %w", key, err)
	e.Hint = "restore the object from a copy of the bucket; nothing was written"
	return e
}
