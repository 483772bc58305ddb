package interceptors

import (
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// Bodies counts the records of open transactions in and out.
type Bodies interface {
	// Add counts n records of size bytes in, or says why the transaction takes none.
	Add(id uint64, n, bytes int) error
	// Fail gives back records that were counted in and never got a tick: the
	// transaction cannot commit any more.
	Fail(id uint64, n, bytes int)
}

// txn counts the bodies of transactions in before they get their ticks.
type txn struct{ bodies Bodies }

// Txn returns the step that counts bodies in.
func Txn(bodies Bodies) Interceptor { return txn{bodies} }

func (t txn) Name() string           { return "txn" }
func (t txn) Ready() <-chan struct{} { return always }
func (t txn) Close()                 {}

func (t txn) Handle(op *Operation, next Handler) {
	id := op.Batch[0].TxnID
	for i := range op.Batch {
		if op.Batch[i].TxnID != id {
			op.Refuse(walimpls.Errorf(walimpls.CodeInvalidArgument, op.Channel, "append: one batch names two transactions"))
			return
		}
	}
	if id == 0 || op.Batch[0].Type != message.TypeData {
		next(op)
		return
	}
	bytes := 0
	for i := range op.Batch {
		bytes += op.Batch[i].Size()
	}
	if err := t.bodies.Add(id, len(op.Batch), bytes); err != nil {
		op.Refuse(err)
		return
	}
	done := op.Done
	op.Done = func(results []Result) {
		// A record without a tick never reached the window, so nobody else
		// counts it out; the size of the others is settled there.
		for i := range results {
			if results[i].State == walimpls.NotStored && op.Batch[i].TimeTick == 0 {
				t.bodies.Fail(id, 1, op.Batch[i].Size())
			}
		}
		done(results)
	}
	next(op)
}
