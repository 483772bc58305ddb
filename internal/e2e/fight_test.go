package e2e

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/walrig/walrig/internal/brokers"
	"github.com/walrig/walrig/sdk/client"
	"github.com/walrig/walrig/sdk/walimpls"
)

var fightFor = flag.Duration("fight", 60*time.Second, "how long two hosts fight for a channel")

// rivals starts two hosts in cluster mode over one broker, each with a folder of
// its own, and gives both the channel orders.
func rivals(t *testing.T, backend, config string) [2]*host {
	t.Helper()
	var hosts [2]*host
	for i := range hosts {
		dir := t.TempDir()
		file := filepath.Join(dir, "walrig.yaml")
		text := fmt.Sprintf("mode: cluster\nplugins:\n  shared: {backend: %s, config: %s}\n", backend, config)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		hosts[i] = startHost(t, filepath.Join(dir, "data"), 60*time.Second, "--config", file)
		if _, _, err := hosts[i].client().CreateChannel(timeout(t, 60*time.Second), "orders", client.CreateOptions{Plugin: "shared", Adopt: i > 0}); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			if _, err := hosts[i].client().OpenChannel(timeout(t, 60*time.Second), "orders", 1, false); err != nil {
				t.Fatal(err)
			}
		}
	}
	return hosts
}

// fight lets the hosts take the channel from each other with growing terms while
// both write to it.
func fight(t *testing.T, hosts [2]*host) {
	clients := [2]*client.Client{hosts[0].client(), hosts[1].client()}
	l := &ledger{outcomes: map[string]walimpls.State{}}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i, c := range clients {
		for writer := range 2 {
			wg.Go(func() { l.write(2*i+writer, func() *client.Client { return c }, stop) })
		}
	}
	length := *fightFor
	if testing.Short() {
		length = min(length, 5*time.Second)
	}
	term, won, late := int64(1), 0, 0
	for end := time.Now().Add(length); time.Now().Before(end); {
		term++
		c := clients[term%2]
		_, err := c.OpenChannel(timeout(t, 60*time.Second), "orders", term, false)
		if err != nil {
			t.Fatalf("term %d: %v", term, err)
		}
		won++
		stored := l.count(walimpls.Stored)
		eventually(t, 60*time.Second, fmt.Sprintf("term %d stores records", term), func() bool { return l.count(walimpls.Stored) > stored })
		// A late Open of a term that is over harms nobody.
		if term%3 == 0 {
			_, err := clients[(term+1)%2].OpenChannel(timeout(t, 60*time.Second), "orders", term-1, false)
			if !errors.Is(err, walimpls.ErrTermExpired) && !errors.Is(err, walimpls.ErrFenced) {
				t.Fatalf("term %d again: %v", term-1, err)
			}
			late++
		}
	}
	close(stop)
	wg.Wait()
	eventually(t, 60*time.Second, "every record is answered", func() bool { return l.inFlight.Load() == 0 })
	if _, err := clients[0].OpenChannel(timeout(t, 60*time.Second), "orders", term+1, false); err != nil {
		t.Fatal(err)
	}
	l.judge(t, clients[0])
	t.Logf("%d takeovers and %d late ones in %s: %d stored, %d not stored, %d unknown", won, late, length,
		l.count(walimpls.Stored), l.count(walimpls.NotStored), l.count(walimpls.Unknown))
	if won < 3 {
		t.Errorf("only %d takeovers", won)
	}
}

func TestTwoHostsFightForAChannelOnKafka(t *testing.T) {
	t.Parallel()
	broker := brokers.Kafka(t)
	config := fmt.Sprintf("{brokers: [%q], topic_prefix: %q}", broker.Addr, unique("e2e-"))
	fight(t, rivals(t, "kafka", config))
}

// unique makes a name that no other run on the broker has.
func unique(prefix string) string { return fmt.Sprintf("%s%x-", prefix, time.Now().UnixNano()) }

func TestTwoHostsFightForAChannelOnPulsar(t *testing.T) {
	t.Parallel()
	broker := brokers.Pulsar(t)
	config := fmt.Sprintf("{service_url: %q, admin_url: %q, namespace: %q}", broker.ServiceURL, broker.AdminURL, unique("e2e-"))
	fight(t, rivals(t, "pulsar", config))
}
