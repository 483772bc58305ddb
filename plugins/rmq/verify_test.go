package rmq

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

func mustVerify(t *testing.T, f vfs.FS, dir string) Report {
	t.Helper()
	r, _, err := verify(testContext(t), f, dir)
	must(t, err)
	return r
}

func TestVerifyOfAGoodStoreFindsNothingAndChangesNothing(t *testing.T) {
	f, want := damagedStore(t)
	before := treeOf(t, f, "/store")
	r := mustVerify(t, f, "/store")
	if r.Damaged() || len(r.Residue) > 0 || len(r.Cuts) > 0 || !r.Repairable || r.TornTail >= 0 {
		t.Fatalf("%+v", r)
	}
	if len(r.Channels) != 2 || r.Channels[0].Channel != "c" || r.Channels[0].Latest != uint64(len(want)+1) || r.Channels[0].Earliest != 1 || r.Channels[0].Term != 1 {
		t.Fatalf("channels %+v", r.Channels)
	}
	records := int64(0)
	for _, g := range r.Segments {
		records += g.Records
	}
	if records != int64(2*len(want)+2) {
		t.Fatalf("%d records, want %d", records, 2*len(want)+2)
	}
	if after := treeOf(t, f, "/store"); after != before {
		t.Fatal("verifying changed the store")
	}
}

// treeOf is all that lies below a folder.
func treeOf(t *testing.T, f vfs.FS, dir string) string {
	t.Helper()
	names, err := f.List(dir)
	must(t, err)
	slices.Sort(names)
	var b strings.Builder
	for _, name := range names {
		path := f.PathJoin(dir, name)
		info, err := f.Stat(path)
		must(t, err)
		if info.IsDir() {
			b.WriteString(treeOf(t, f, path))
		} else if name != lockName {
			fmt.Fprintf(&b, "%s %08x\n", path, checksum(readFileOf(t, f, path)))
		}
	}
	return b.String()
}

// What verify says a repair would cut is what is missing after it, and nothing
// else; the copy is the store as it was.
func TestRepairCutsWhatVerifySaysAndKeepsTheRest(t *testing.T) {
	pristine, want := damagedStore(t)
	c, err := readStore(pristine, testLogDir)
	must(t, err)
	for i, g := range c.segments {
		for _, part := range []string{"header", "body", "file"} {
			if part == "file" && i == len(c.segments)-1 {
				continue // see TestRepairDoesNotGuess
			}
			t.Run(fmt.Sprintf("segment %d %s", g.num, part), func(t *testing.T) {
				f := copyStore(t, pristine)
				b := bytes.Clone(readFileOf(t, f, g.path))
				scan := scanSegment(b, g.num, -1)
				for _, p := range scan.frames {
					if p.kind != frameData || p.log != 1 {
						continue
					}
					b[p.pos+map[string]int64{"header": 20, "body": frameHeaderLen + 100}[part]] ^= 1
					break
				}
				writeFileOf(t, f, g.path, b)
				if part == "file" {
					must(t, f.Remove(g.path))
				}
				found := mustVerify(t, f, "/store")
				if !found.Damaged() || !found.Repairable || len(found.Cuts) == 0 {
					t.Fatalf("%+v", found)
				}
				before := treeOf(t, f, "/store")
				_, err := repair(testContext(t), f, "/store", "/copy")
				must(t, err)
				if after := strings.ReplaceAll(treeOf(t, f, "/copy"), "/copy", "/store"); after != before {
					t.Fatalf("the copy is not the store as it was:\n%s\nwas\n%s", after, before)
				}
				if again := mustVerify(t, f, "/store"); again.Damaged() || len(again.Cuts) > 0 {
					t.Fatalf("after the repair: %+v", again)
				}
				cut := map[string]map[uint64]bool{"c": {}, "other": {}}
				for _, x := range found.Cuts {
					for id := x.First; id <= x.Last; id++ {
						cut[x.Channel][id] = true
					}
				}
				for range 2 { // and after another opening
					s := newMemStore(t)
					s.fs = f
					o := s.opener()
					for _, name := range []string{"c", "other"} {
						w := mustOpen(t, o, rw(name, 1, 0))
						mustAppend(t, w, "new")
						var kept []string
						for k, text := range want {
							if !cut[name][uint64(k+2)] {
								kept = append(kept, text)
							}
						}
						got := payloads(readAll(t, w))
						if n := len(kept); len(got) <= n || fmt.Sprint(got[:n]) != fmt.Sprint(kept) {
							t.Fatalf("%s has %d records, want %d and new ones", name, len(got), n)
						}
					}
					must(t, o.Close(context.Background()))
				}
			})
		}
	}
}

func TestRepairDoesNotGuess(t *testing.T) {
	pristine, _ := damagedStore(t)
	g, _ := activeOf(t, pristine)
	for _, how := range []string{"the newest segment is missing", "its snapshot is damaged"} {
		f := copyStore(t, pristine)
		b := bytes.Clone(readFileOf(t, f, g.path))
		must(t, f.Remove(g.path))
		if how != "the newest segment is missing" {
			b[frameHeaderLen] ^= 1
			writeFileOf(t, f, g.path, b)
		}
		before := treeOf(t, f, "/store")
		r, err := repair(testContext(t), f, "/store", "/copy")
		wantIs(t, err, walimpls.ErrCorrupt)
		if r.Repairable || !r.Damaged() {
			t.Fatalf("%s: %+v", how, r)
		}
		if treeOf(t, f, "/store") != before {
			t.Fatal("the store was changed")
		}
	}
}

func TestRepairOverwritesNoCopy(t *testing.T) {
	f, _ := damagedStore(t)
	c, err := readStore(f, testLogDir)
	must(t, err)
	must(t, f.Remove(c.segments[0].path))
	must(t, f.MkdirAll("/copy", 0o700))
	before := treeOf(t, f, "/store")
	if _, err := repair(testContext(t), f, "/store", "/copy"); err == nil || !strings.Contains(err.Error(), "exists") {
		t.Fatalf("got %v", err)
	}
	if treeOf(t, f, "/store") != before {
		t.Fatal("the store was changed")
	}
}

func TestVerifyRefusesAStoreInUse(t *testing.T) {
	s := newDiskStore(t)
	o := s.opener()
	mustAppend(t, mustOpen(t, o, rw("c", 1, 1)), "a")
	_, err := Verify(testContext(t), s.dir)
	wantIs(t, err, walimpls.ErrUnavailable)
	must(t, o.Close(context.Background()))
	r, err := Verify(testContext(t), s.dir)
	must(t, err)
	if r.Damaged() || len(r.Channels) != 1 {
		t.Fatalf("%+v", r)
	}
	_, err = Verify(testContext(t), t.TempDir())
	wantIs(t, err, walimpls.ErrForeignStore)
}

// A backup needs no stop: it holds what was acknowledged before it began, and
// a beginning of the rest, while segments come, go and are used again.
func TestBackupOfAStoreInUse(t *testing.T) {
	s := newDiskStore(t)
	s.tune = func(s *settings) { s.segmentSize, s.reclaimDelay = 256<<10, 1 }
	o := s.opener()
	w, kept := mustOpen(t, o, rw("c", 1, 1)), mustOpen(t, o, rw("kept", 1, 1))
	mustAppend(t, kept, "kept")
	var mu sync.Mutex
	acked := map[message.ID]string{}
	stop := make(chan struct{})
	var running sync.WaitGroup
	first := make(chan struct{})
	running.Go(func() {
		pad := string(randomPayload(8 << 10))
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			text := fmt.Sprintf("%d-%s", n, pad)
			id := mustAppend(t, w, text)[0]
			mu.Lock()
			acked[id] = text
			mu.Unlock()
			if n == 50 {
				close(first)
			}
			if n%100 == 99 {
				must(t, w.Truncate(context.Background(), id))
			}
		}
	})
	<-first
	for i := range 3 {
		mu.Lock()
		var newest message.ID
		for id := range acked {
			newest = max(newest, id)
		}
		mu.Unlock()
		to := fmt.Sprintf("%s.copy%d", s.dir, i)
		r, err := Backup(testContext(t), s.dir, to)
		must(t, err)
		if r.Damaged() || len(r.Channels) != 2 {
			t.Fatalf("%+v", r)
		}
		copied := newDiskStore(t)
		copied.dir = to
		o := copied.opener()
		wantPayloads(t, readAll(t, mustOpen(t, o, ro("kept"))), "kept")
		records := readAll(t, mustOpen(t, o, ro("c")))
		if last := records[len(records)-1].ID; last.Less(newest) {
			t.Fatalf("the copy ends at %s, %s was acknowledged before", last, newest)
		}
		mu.Lock()
		for _, m := range records {
			if want, ok := acked[m.ID]; ok && want != string(m.Payload) {
				t.Fatalf("record %s differs", m.ID)
			}
		}
		mu.Unlock()
		must(t, o.Close(context.Background()))
	}
	close(stop)
	running.Wait()
	_, err := Backup(testContext(t), s.dir, s.dir+".copy0")
	wantIs(t, err, walimpls.ErrAlreadyExists)
}
