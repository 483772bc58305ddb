package brokers

import (
	"testing"
)

func TestQuickKafka(t *testing.T)  { k := Kafka(t); t.Log(k) }
func TestQuickPulsar(t *testing.T) { k := Pulsar(t); t.Log(k) }
func TestQuickKafkaP(t *testing.T) {
	k := StartKafka(t, KafkaOptions{})
	t.Log(k.Addr)
	if err := k.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := k.Restart(); err != nil {
		t.Fatal(err)
	}
}
func TestQuickPulsarP(t *testing.T) {
	k := StartPulsar(t, PulsarOptions{})
	t.Log(k.AdminURL)
	if err := k.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := k.Restart(); err != nil {
		t.Fatal(err)
	}
}
