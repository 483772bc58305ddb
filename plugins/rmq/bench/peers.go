package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	raftwal "github.com/hashicorp/raft-wal"

	"github.com/hashicorp/raft"
	natsd "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/walrig/walrig/host/pluginhost"
	"github.com/walrig/walrig/plugins/rmq"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

const bareName = "bare segment file"

func allPeers() []peer {
	return []peer{
		{bareName, func(dir string, _ int) (store, error) { return openBare(dir, 0) }},
		{"the same, written before", func(dir string, _ int) (store, error) { return openBare(dir, 4) }},
		{"bbolt batch", func(dir string, n int) (store, error) { return openBolt(dir, n) }},
		{"raft-wal, group writer", func(dir string, _ int) (store, error) { return openRaft(dir) }},
		{"JetStream, sync always", func(dir string, n int) (store, error) { return openNATS(dir, n) }},
		{"rmq in process", func(dir string, n int) (store, error) { return openRMQ(dir, n, 1) }},
		{"rmq, 16 channels", func(dir string, n int) (store, error) { return openRMQ(dir, n, 16) }},
		{"rmq through the plugin", func(dir string, n int) (store, error) { return openPlugin(dir, n) }},
	}
}

// group lets one goroutine commit for all that wait: whatever came while the
// last commit was synced makes the next one.
type group struct {
	mu      sync.Mutex // guards waiting, ended
	waiting []*waiter
	ended   bool
	wake    chan struct{}
	done    chan struct{}
}

type waiter struct {
	payload []byte
	done    chan error
}

func newGroup(commit func([]*waiter) error) *group {
	g := &group{wake: make(chan struct{}, 1), done: make(chan struct{})}
	go func() {
		defer close(g.done)
		for range g.wake {
			for {
				for range 3 {
					runtime.Gosched()
				}
				g.mu.Lock()
				taken, ended := g.waiting, g.ended
				g.waiting = nil
				g.mu.Unlock()
				if len(taken) == 0 {
					if ended {
						return
					}
					break
				}
				err := commit(taken)
				for _, w := range taken {
					w.done <- err
				}
			}
		}
	}()
	return g
}

func (g *group) append(payload []byte) error {
	w := &waiter{payload, make(chan error, 1)}
	g.mu.Lock()
	g.waiting = append(g.waiting, w)
	g.mu.Unlock()
	select {
	case g.wake <- struct{}{}:
	default:
	}
	return <-w.done
}

func (g *group) close() {
	g.mu.Lock()
	g.ended = true
	g.mu.Unlock()
	select {
	case g.wake <- struct{}{}:
	default:
	}
	<-g.done
}

// bare is the least that a durable log can be: length, CRC and payload, one
// write and one fdatasync for all that wait. The files grow, or a few that were
// written before are used in turn, which is what recycling comes to.
type bare struct {
	*group
	dir  string
	turn int // files that are used in turn, 0 for new ones that grow
	file *os.File
	size int64
	n    int
	buf  []byte
}

const bareBytes = 16 << 20

func openBare(dir string, turn int) (*bare, error) {
	b := &bare{dir: dir, turn: turn}
	for i := range turn {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), make([]byte, bareBytes+4<<20), 0o600); err != nil {
			return nil, err
		}
	}
	unix.Sync()
	if err := b.roll(); err != nil {
		return nil, err
	}
	b.group = newGroup(b.commit)
	return b, nil
}

func (b *bare) roll() error {
	if b.file != nil {
		if err := b.file.Close(); err != nil {
			return err
		}
	}
	b.n++
	name := b.n
	if b.turn > 0 {
		name %= b.turn
	}
	file, err := os.OpenFile(filepath.Join(b.dir, fmt.Sprint(name)), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	b.file, b.size = file, 0
	d, err := os.Open(b.dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

func (b *bare) commit(waiting []*waiter) error {
	b.buf = b.buf[:0]
	for _, w := range waiting {
		b.buf = binary.LittleEndian.AppendUint32(b.buf, uint32(len(w.payload)))
		b.buf = binary.LittleEndian.AppendUint32(b.buf, crc32.Checksum(w.payload, crc32.MakeTable(crc32.Castagnoli)))
		b.buf = append(b.buf, w.payload...)
	}
	if b.size > bareBytes {
		if err := b.roll(); err != nil {
			return err
		}
	}
	if _, err := b.file.Write(b.buf); err != nil {
		return err
	}
	b.size += int64(len(b.buf))
	return unix.Fdatasync(int(b.file.Fd()))
}

func (b *bare) Append(_ int, payload []byte) error { return b.append(payload) }

func (b *bare) Close() error {
	b.close()
	return b.file.Close()
}

type bolt struct{ db *bbolt.DB }

func openBolt(dir string, appenders int) (*bolt, error) {
	db, err := bbolt.Open(filepath.Join(dir, "db"), 0o600, nil)
	if err != nil {
		return nil, err
	}
	// A batch is committed when all appenders wait, or after a millisecond.
	db.MaxBatchSize, db.MaxBatchDelay = appenders, time.Millisecond
	return &bolt{db: db}, db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucket([]byte("log"))
		return err
	})
}

func (b *bolt) Append(_ int, payload []byte) error {
	return b.db.Batch(func(tx *bbolt.Tx) error {
		bucket := tx.Bucket([]byte("log"))
		bucket.FillPercent = 1
		n, err := bucket.NextSequence()
		if err != nil {
			return err
		}
		return bucket.Put(binary.BigEndian.AppendUint64(nil, n), payload)
	})
}

func (b *bolt) Close() error { return b.db.Close() }

type raftLog struct {
	*group
	wal  *raftwal.WAL
	next uint64
}

func openRaft(dir string) (*raftLog, error) {
	wal, err := raftwal.Open(dir)
	if err != nil {
		return nil, err
	}
	r := &raftLog{wal: wal, next: 1}
	r.group = newGroup(func(waiting []*waiter) error {
		logs := make([]*raft.Log, len(waiting))
		for i, w := range waiting {
			logs[i] = &raft.Log{Index: r.next, Term: 1, Data: w.payload}
			r.next++
		}
		return wal.StoreLogs(logs)
	})
	return r, nil
}

func (r *raftLog) Append(_ int, payload []byte) error { return r.append(payload) }

func (r *raftLog) Close() error {
	r.close()
	return r.wal.Close()
}

type jetStream struct {
	server *natsd.Server
	conns  []*nats.Conn
	js     []nats.JetStreamContext
}

func openNATS(dir string, appenders int) (*jetStream, error) {
	server, err := natsd.NewServer(&natsd.Options{DontListen: true, JetStream: true, StoreDir: dir, SyncAlways: true, NoSigs: true, NoLog: true})
	if err != nil {
		return nil, err
	}
	server.Start()
	if !server.ReadyForConnections(10 * time.Second) {
		return nil, fmt.Errorf("the NATS server did not start")
	}
	j := &jetStream{server: server}
	for range min(appenders, 16) {
		conn, err := nats.Connect("", nats.InProcessServer(server))
		if err != nil {
			return nil, err
		}
		js, err := conn.JetStream(nats.MaxWait(time.Minute))
		if err != nil {
			return nil, err
		}
		j.conns, j.js = append(j.conns, conn), append(j.js, js)
	}
	_, err = j.js[0].AddStream(&nats.StreamConfig{Name: "log", Subjects: []string{"log"}, Storage: nats.FileStorage})
	return j, err
}

func (j *jetStream) Append(appender int, payload []byte) error {
	_, err := j.js[appender%len(j.js)].Publish("log", payload)
	return err
}

func (j *jetStream) Close() error {
	for _, conn := range j.conns {
		conn.Close()
	}
	j.server.Shutdown()
	j.server.WaitForShutdown()
	return nil
}

// logs is walrig's contract, in process or through a plugin.
type logs struct {
	wals  []walimpls.WAL
	close func() error
}

func openLogs(open func(context.Context, walimpls.OpenOptions) (walimpls.WAL, error), channels int, close func() error) (*logs, error) {
	l := &logs{close: close}
	for i := range channels {
		w, err := open(context.Background(), walimpls.OpenOptions{Channel: fmt.Sprint("c", i), Term: 1, Incarnation: 1, Access: walimpls.AccessReadWrite})
		if err != nil {
			return nil, err
		}
		l.wals = append(l.wals, w)
	}
	return l, nil
}

func (l *logs) Append(appender int, payload []byte) error {
	_, err := l.wals[appender%len(l.wals)].Append(context.Background(), []message.Message{{Type: message.TypeData, Payload: payload}})
	return err
}

func (l *logs) Close() error { return l.close() }

func openRMQ(dir string, _, channels int) (*logs, error) {
	o, err := rmq.NewBuilder().Build(context.Background(), walimpls.Config{"dir": filepath.Join(dir, "store")}, nil)
	if err != nil {
		return nil, err
	}
	return openLogs(o.Open, channels, func() error { return o.Close(context.Background()) })
}

func openPlugin(dir string, _ int) (*logs, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	host, err := pluginhost.New(pluginhost.Options{Plugins: []pluginhost.Config{{
		Name: "local", Backend: "rmq", Path: self, Env: map[string]string{serveEnv: "1"},
		Config: walimpls.Config{"dir": filepath.Join(dir, "store")},
	}}})
	if err != nil {
		return nil, err
	}
	p, err := host.Plugin("local")
	if err != nil {
		return nil, err
	}
	return openLogs(p.Open, 1, func() error { return host.Close(context.Background()) })
}
