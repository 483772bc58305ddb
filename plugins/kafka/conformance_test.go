package kafka

import (
	"testing"

	"github.com/walrig/walrig/conformance"
)

func TestKafkaKeepsTheContract(t *testing.T) {
	conformance.Test(t, conformance.InProcess(NewBuilder(), shared(t)))
}
