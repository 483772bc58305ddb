package brokers

import (
	"context"
	"crypto/rand"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
)

func TestKilledPulsarKeepsWhatItAcknowledged(t *testing.T) {
	t.Parallel()
	b := StartPulsar(t, PulsarOptions{Conf: map[string]string{"managedLedgerMaxEntriesPerLedger": "10"}})
	topic := "persistent://public/default/t-" + rand.Text()
	send(t, b.ServiceURL, topic, "before")
	before, err := b.Pid()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Kill(); err != nil {
		t.Fatal(err)
	}
	if alive(before) {
		t.Fatal("the broker is there after Kill")
	}
	if err := b.Restart(); err != nil {
		t.Fatal(err)
	}
	send(t, b.ServiceURL, topic, "after")
	if got := receive(t, b.ServiceURL, topic, 2); got[0] != "before" || got[1] != "after" {
		t.Fatalf("read %v", got)
	}
	conf := get(t, b.AdminURL+"/admin/v2/brokers/configuration/runtime")
	if want := `"managedLedgerMaxEntriesPerLedger":"10"`; !strings.Contains(conf, want) {
		t.Errorf("the test's setting did not win: %s is not in %s", want, conf)
	}
}

func TestPulsarDiesWithItsKilledUsers(t *testing.T) {
	t.Parallel()
	needBrokers(t, pulsarRecipe, "Pulsar")
	tmp := t.TempDir()
	first, second := startHelper(t, "shared pulsar", tmp), startHelper(t, "shared pulsar", tmp)
	if a, b := first.addr(t), second.addr(t); a != b {
		t.Fatalf("two brokers: %s and %s", a, b)
	}
	first.kill()
	second.kill()
	awaitNothing(t, tmp)
}

func pulsarClient(t *testing.T, url string) pulsar.Client {
	t.Helper()
	client, err := pulsar.NewClient(pulsar.ClientOptions{URL: url, OperationTimeout: bound,
		Logger: log.NewLoggerWithSlog(slog.New(slog.DiscardHandler))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func send(t *testing.T, url, topic, value string) {
	t.Helper()
	p, err := pulsarClient(t, url).CreateProducer(pulsar.ProducerOptions{Topic: topic})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	if _, err := p.Send(ctx, &pulsar.ProducerMessage{Payload: []byte(value)}); err != nil {
		t.Fatal(err)
	}
}

func receive(t *testing.T, url, topic string, n int) []string {
	t.Helper()
	r, err := pulsarClient(t, url).CreateReader(pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.EarliestMessageID()})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	var values []string
	for range n {
		m, err := r.Next(ctx)
		if err != nil {
			t.Fatalf("read %v, then: %v", values, err)
		}
		values = append(values, string(m.Payload()))
	}
	return values
}

func get(t *testing.T, url string) string {
	t.Helper()
	client := &http.Client{Timeout: 30 * time.Second}
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s %v", url, resp.Status, err)
	}
	return string(b)
}
