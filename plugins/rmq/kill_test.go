package rmq

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"

	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/walimpls"
)

// appendUntilKilled is the helper process's main: eight writers append, and
// each record is printed once it is acknowledged.
func appendUntilKilled(dir string) {
	fail := func(err error) {
		fmt.Println("failed", err)
		os.Exit(1)
	}
	o, err := NewBuilder().Build(context.Background(), walimpls.Config{"dir": dir, "segment_size": "256KiB"}, zap.NewNop())
	if err != nil {
		fail(err)
	}
	w, err := o.Open(context.Background(), rw("c", 1, 0))
	if err != nil {
		fail(err)
	}
	pad := randomPayload(500)
	var mu sync.Mutex
	for g := range 8 {
		go func() {
			for n := 1; ; n++ {
				text := fmt.Sprintf("%s/%d-%d", w.Channel().Pair, g, n)
				m := data(text)
				m.Properties = map[string]string{"pad": string(pad)}
				ids, err := w.Append(context.Background(), append(batchOf(), m))
				if err != nil {
					fail(err)
				}
				mu.Lock()
				v, _ := ids[0].Uint64()
				fmt.Println(v, text)
				mu.Unlock()
			}
		}()
	}
	select {}
}

// kill -9 while appends are in flight: what was acknowledged is there, once,
// and the next process has the folder at once.
func TestKilledProcessLosesNothingAcknowledged(t *testing.T) {
	rounds := 5
	if testing.Short() {
		rounds = 2
	}
	s := newDiskStore(t)
	acked := map[uint64]string{}
	for round := range rounds {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), appendHelperEnv+"="+s.dir)
		stdout, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		lines := bufio.NewScanner(stdout)
		for n := 0; lines.Scan(); n++ {
			var id uint64
			var text string
			if _, err := fmt.Sscan(lines.Text(), &id, &text); err == nil {
				acked[id] = text
			} else if n < 200 {
				t.Errorf("the other process says %q", lines.Text())
			}
			if n == 200+round*50 {
				must(t, cmd.Process.Kill()) // the writers go on until it hits them
			}
		}
		_ = cmd.Wait()

		o := s.opener()
		r := mustOpen(t, o, ro("c"))
		seen := map[string]bool{}
		missing := len(acked)
		for _, m := range readAll(t, r) {
			id, _ := m.ID.Uint64()
			text := string(m.Payload)
			if want, ok := acked[id]; ok {
				missing--
				if want != text {
					t.Fatalf("record %d is %q, acknowledged as %q", id, text, want)
				}
			}
			if text != "" && seen[text] {
				t.Fatalf("record %q is there twice", text)
			}
			seen[text] = true
		}
		if missing > 0 {
			t.Fatalf("%d of %d acknowledged records are missing", missing, len(acked))
		}
		must(t, o.Close(context.Background()))
	}
	t.Logf("%d records were acknowledged over %d kills", len(acked), rounds)
}
