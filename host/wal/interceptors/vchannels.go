package interceptors

import (
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// Declared tells which vchannels take records.
type Declared interface {
	// Ready is closed when Refuse can answer.
	Ready() <-chan struct{}
	// Refuse says why a record may not be appended, nil if it may.
	Refuse(m *message.Message) error
}

// vchannels refuses the records of vchannels that are not declared.
type vchannels struct{ declared Declared }

// VChannels returns the step that refuses records of vchannels that are not
// declared, before they get a tick; their neighbours in a batch go on. It stands
// behind the lock, so that a record which waited for a drop sees it.
func VChannels(declared Declared) Interceptor { return vchannels{declared} }

func (v vchannels) Name() string           { return "vchannels" }
func (v vchannels) Ready() <-chan struct{} { return v.declared.Ready() }
func (v vchannels) Close()                 {}

func (v vchannels) Handle(op *Operation, next Handler) {
	var errs []error
	for i := range op.Batch {
		m := &op.Batch[i]
		if m.VChannel == "" || m.Type.IsExclusive() {
			continue
		}
		if err := v.declared.Refuse(m); err != nil {
			if errs == nil {
				errs = make([]error, len(op.Batch))
			}
			errs[i] = err
		}
	}
	if errs == nil || op.Without(errs) {
		next(op)
	}
}

// Without takes the records that have an error out of op and answers them with
// it, together with the others. It reports whether any are left; if none are, op
// is answered and settled.
func (op *Operation) Without(errs []error) bool {
	results := make([]Result, len(op.Batch))
	kept, places := make([]message.Message, 0, len(op.Batch)), make([]int, 0, len(op.Batch))
	for i := range op.Batch {
		if errs[i] == nil {
			kept, places = append(kept, op.Batch[i]), append(places, i)
			continue
		}
		results[i].Outcome = walimpls.Outcome{State: walimpls.NotStored, Err: errs[i]}
	}
	done := op.Done
	op.Batch, op.Done = kept, func(r []Result) {
		for i, place := range places {
			results[place] = r[i]
		}
		done(results)
	}
	if len(kept) > 0 {
		return true
	}
	op.Done(nil)
	op.Settle()
	return false
}
