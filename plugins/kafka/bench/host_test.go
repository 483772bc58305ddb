package bench

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/walrig/walrig/internal/brokers"
	"github.com/walrig/walrig/sdk/walimpls"
)

// endpoint is the broker of WALRIG_TEST_KAFKA, or one of this benchmark's own
// that is built for speed.
func endpoint(b *testing.B) brokers.KafkaEndpoint {
	if os.Getenv("WALRIG_TEST_KAFKA") != "" {
		return brokers.Kafka(b)
	}
	return brokers.StartKafka(b, brokers.KafkaOptions{HeapMB: 1024, JavaOpts: "-XX:TieredStopAtLevel=4"}).KafkaEndpoint
}

var readyLine = regexp.MustCompile(`^walrig ready addr=(\S+) `)

// startHost builds walrig and the plugin, serves a channel "bench" on Kafka, and
// returns the address.
func startHost(b *testing.B, cfg walimpls.Config) string {
	b.Helper()
	dir := b.TempDir()
	build := exec.Command("go", "build", "-o", dir+"/", "./host/cmd/walrig", "./plugins/kafka/cmd/walrig-plugin-kafka")
	build.Dir = filepath.Join("..", "..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("go build: %v\n%s", err, out)
	}
	var lines []string
	for k, v := range cfg {
		lines = append(lines, fmt.Sprintf("      %s: %q", k, v))
	}
	file := filepath.Join(dir, "walrig.yaml")
	text := "plugins:\n  p:\n    backend: kafka\n    path: " + filepath.Join(dir, "walrig-plugin-kafka") + "\n    config:\n" + strings.Join(lines, "\n") + "\ndefault_plugin: p\n"
	fatal(b, os.WriteFile(file, []byte(text), 0o600))
	cmd := exec.Command(filepath.Join(dir, "walrig"), "serve", "--config", file, "--listen", "127.0.0.1:0", "--data-dir", filepath.Join(dir, "data"))
	log, err := os.Create(filepath.Join(dir, "log"))
	fatal(b, err)
	cmd.Stderr = log
	stdout, err := cmd.StdoutPipe()
	fatal(b, err)
	fatal(b, cmd.Start())
	ready, gone := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(gone)
		scan := bufio.NewScanner(stdout)
		for scan.Scan() {
			if m := readyLine.FindStringSubmatch(scan.Text()); m != nil {
				ready <- m[1]
			}
		}
		_ = cmd.Wait()
	}()
	b.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-gone:
		case <-time.After(20 * time.Second):
			_ = cmd.Process.Kill()
			<-gone
		}
		log.Close()
	})
	said := func() string {
		text, _ := os.ReadFile(log.Name())
		return string(text)
	}
	var addr string
	select {
	case addr = <-ready:
	case <-gone:
		b.Fatalf("the host ended:\n%s", said())
	case <-time.After(time.Minute):
		b.Fatalf("the host is not ready:\n%s", said())
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	create := exec.CommandContext(ctx, filepath.Join(dir, "walrig"), "--addr", addr, "channel", "create", "bench")
	if out, err := create.CombinedOutput(); err != nil {
		b.Fatalf("channel create: %v\n%s\n%s", err, out, said())
	}
	return addr
}
