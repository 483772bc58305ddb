package interceptors

import (
	"time"

	"github.com/walrig/walrig/sdk/walimpls"
)

// Observer is told of every answered append. It must not block.
type Observer interface {
	// Appended reports the outcomes of one batch, counted by state, its bytes,
	// and how long it took from the call to the answer.
	Appended(channel string, stored, notStored, unknown, bytes int, took time.Duration)
}

type metrics struct{ observer Observer }

// Metrics returns the step that tells observer; nil observes nothing.
func Metrics(observer Observer) Interceptor { return metrics{observer} }

func (m metrics) Name() string           { return "metrics" }
func (m metrics) Ready() <-chan struct{} { return always }
func (m metrics) Close()                 {}

func (m metrics) Handle(op *Operation, next Handler) {
	if m.observer == nil {
		next(op)
		return
	}
	start, done := time.Now(), op.Done
	bytes := 0
	for i := range op.Batch {
		bytes += op.Batch[i].Size()
	}
	channel := op.Channel
	op.Done = func(results []Result) {
		var n [3]int
		for i := range results {
			n[results[i].State]++
		}
		m.observer.Appended(channel, n[walimpls.Stored], n[walimpls.NotStored], n[walimpls.Unknown], bytes, time.Since(start))
		done(results)
	}
	next(op)
}
