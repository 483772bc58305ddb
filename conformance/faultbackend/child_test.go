package faultbackend

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/walimpls"
)

// childMain appends to the store in the file until it is killed, and prints what
// was acknowledged. It ends with its standard input, too.
func childMain(file string) {
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		os.Exit(0)
	}()
	o, err := NewBuilder().Build(context.Background(), walimpls.Config{"file": file}, zap.NewNop())
	if err != nil {
		panic(err)
	}
	var term int64
	_, _ = fmt.Sscan(os.Getenv("WALRIG_TEST_FAULT_TERM"), &term)
	w, err := o.Open(context.Background(), rw(channel, term, 1))
	if err != nil {
		panic(err)
	}
	out := bufio.NewWriter(os.Stdout)
	for i := 0; ; i++ {
		payload := fmt.Sprintf("%d-%d-%s", term, i, strings.Repeat("x", i%500))
		if _, err := w.Append(context.Background(), data(payload)); err != nil {
			panic(err)
		}
		fmt.Fprintln(out, payload)
		if i%7 == 0 {
			_ = out.Flush()
		}
	}
}

func TestAcknowledgedRecordsSurviveAKill(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	rnd := rand.New(rand.NewPCG(3, 4))
	var acked []string
	for term := 1; term <= 8; term++ {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "WALRIG_TEST_FAULT_CHILD="+file, fmt.Sprintf("WALRIG_TEST_FAULT_TERM=%d", term))
		stdin, err := cmd.StdinPipe()
		check(t, err)
		stdout, err := cmd.StdoutPipe()
		check(t, err)
		check(t, cmd.Start())
		lines := bufio.NewReader(stdout)
		got := 0
		for kill := 20 + rnd.IntN(2000); ; got++ {
			line, err := lines.ReadString('\n')
			if err != nil {
				break // and with it what the kill left of the last line
			}
			acked = append(acked, strings.TrimSuffix(line, "\n"))
			if got == kill {
				check(t, cmd.Process.Kill()) // it goes on appending until this very moment
			}
		}
		_ = stdin.Close()
		if err := cmd.Wait(); err == nil || got < 20 {
			t.Fatalf("term %d: the child ended by itself after %d records: %v", term, got, err)
		}
	}
	session(t, file, 100, func(_ walimpls.Opener, w walimpls.WAL) {
		recs := payloads(mustRead(t, w))
		seen := map[string]int{}
		for _, p := range recs {
			seen[p]++
		}
		for _, p := range acked {
			if seen[p] != 1 {
				t.Fatalf("%q was acknowledged and is there %d times", p, seen[p])
			}
		}
		t.Logf("%d acknowledged, %d stored", len(acked), len(recs))
	})
}
