package parquet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/walrig/walrig/flusher"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

const (
	testChannel = "orders"
	testStore   = "store-1"
)

func testKey(vchannel string, term int64) flusher.SinkKey {
	return flusher.SinkKey{PChannel: testChannel, StoreID: testStore, VChannel: vchannel, Term: term}
}

func testCheckpoint(term int64, tick message.Tick) message.Checkpoint {
	return message.Checkpoint{StoreID: testStore, ID: message.Uint64ID(uint64(tick)), Term: term, Tick: tick}
}

func testRows(vchannel string, from, to message.Tick) []message.Message {
	var rows []message.Message
	for tick := from; tick <= to; tick++ {
		rows = append(rows, message.Message{
			ID: message.Uint64ID(uint64(tick)), Type: message.TypeData, VChannel: vchannel, Term: 1, TimeTick: tick, Payload: fmt.Append(nil, tick),
		})
	}
	return rows
}

// ticksOf reads every listed file from the store and returns the rows' ticks.
func ticksOf(t testing.TB, m *memStore, v flusher.VChannelSink) []message.Tick {
	t.Helper()
	files, err := v.Files(context.Background())
	if err != nil {
		t.Fatalf("list files: %v", err)
	}
	var ticks []message.Tick
	for _, f := range files {
		m.mu.Lock()
		data, there := m.objects[f.Path]
		m.mu.Unlock()
		if !there {
			t.Fatalf("listed file %s is not there", f.Path)
		}
		lines := strings.Fields(string(data))
		if int64(len(lines)) != f.Rows || int64(len(data)) != f.Bytes {
			t.Fatalf("listed file %+v has %d rows, %d bytes", f, len(lines), len(data))
		}
		for _, line := range lines {
			tick, err := strconv.ParseUint(line, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			ticks = append(ticks, message.Tick(tick))
		}
	}
	return ticks
}

// dataTicks is the test's log: what rows a vchannel has. "busy" has one at every
// tick, "early" stops at 6, which leaves it idle afterwards.
func dataTicks(vchannel string, after, upTo message.Tick) (from, to message.Tick) {
	if vchannel == "early" {
		upTo = min(upTo, 6)
	}
	return after + 1, upTo
}

// checkOutput is the oracle: what is listed is every row up to the checkpoint,
// once and in order, and nothing above it; and no row lies between the
// checkpoint and the point up to which the log was cut.
func checkOutput(t testing.TB, m *memStore, v flusher.VChannelSink, vchannel string, cut message.Tick) {
	t.Helper()
	cp := v.Checkpoint()
	_, last := dataTicks(vchannel, 0, cp.Tick)
	ticks := ticksOf(t, m, v)
	for i, tick := range ticks {
		if tick != message.Tick(i+1) {
			t.Fatalf("%s: row %d has tick %d, want %d (checkpoint %d)", vchannel, i, tick, i+1, cp.Tick)
		}
	}
	if message.Tick(len(ticks)) != last {
		t.Fatalf("%s: %d rows are listed, the checkpoint %d says %d", vchannel, len(ticks), cp.Tick, last)
	}
	if from, to := dataTicks(vchannel, cp.Tick, cut); from <= to {
		t.Fatalf("%s: rows %d to %d are lost: the log was cut at %d, the manifest is at %d", vchannel, from, to, cut, cp.Tick)
	}
}

// writeTicks stands in for Parquet where thousands of files are written.
func writeTicks(_ context.Context, out io.Writer, rows []message.Message, _ map[string]string) error {
	for _, r := range rows {
		if _, err := fmt.Fprintln(out, uint64(r.TimeTick)); err != nil {
			return err
		}
	}
	return nil
}

// testSink cuts a file for each row and a page for each two files.
func testSink(m *memStore, g gate) *Sink { return testSinkAged(m, g, time.Nanosecond) }

func testSinkAged(m *memStore, g gate, age time.Duration) *Sink {
	s := newSink(&gatedStore{m, g}, "", Options{fanout: 2, FileBytes: 1, CollectEvery: time.Hour, GarbageAge: age})
	s.encode = writeTicks
	return s
}

var errInjected = errors.New("injected failure")

func isCorrupt(err error) bool {
	var e *walimpls.Error
	return errors.As(err, &e) && e.Code == walimpls.CodeCorrupt && e.Hint != ""
}
