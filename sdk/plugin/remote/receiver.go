package remote

import (
	"context"
	"errors"
	"io"

	"github.com/walrig/walrig/sdk/message"
	pluginv1 "github.com/walrig/walrig/sdk/proto/plugin/v1"
	"github.com/walrig/walrig/sdk/walimpls"
	"github.com/walrig/walrig/sdk/wire"
)

// receive runs until the stream ends. It calls the done functions.
func (a *appender) receive() {
	defer close(a.received)
	defer a.cancel()
	for {
		resp, err := a.stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = walimpls.Errorf(walimpls.CodeUnavailable, a.channel, "the plugin ended the append stream")
			}
			a.lose(callError(context.Background(), a.channel, err))
			return
		}
		a.mu.Lock()
		finished, err := a.answer(resp)
		a.freed()
		a.mu.Unlock()
		deliver(finished)
		if err != nil {
			a.lose(err)
			return
		}
		a.signal()
	}
}

// answer settles the oldest request; mu is held. An error means that the plugin
// breaks the protocol; the request stays in flight then.
func (a *appender) answer(resp *pluginv1.AppendResponse) ([]*call, error) {
	q := &a.queue
	if len(q.inFlight) == 0 || q.inFlight[0].sequence != resp.GetSequence() {
		return nil, protocolError(a.channel, "it answers batch %d, which is not the oldest in flight", resp.GetSequence())
	}
	n := q.inFlight[0].records
	outcomes, err := a.outcomes(n, resp)
	if err != nil {
		return nil, err
	}
	finished := q.answer(outcomes)
	for i := range outcomes {
		if outcomes[i].State == walimpls.Unknown {
			finished = append(finished, a.end(outcomes[i].Err)...)
			break
		}
	}
	return finished, nil
}

// outcomes reads one answer; mu is held.
func (a *appender) outcomes(n int, resp *pluginv1.AppendResponse) ([]walimpls.Outcome, error) {
	var out []walimpls.Outcome
	if resp.GetError() == nil {
		if len(resp.GetIds()) != n {
			return nil, protocolError(a.channel, "it answers %d records with %d ids", n, len(resp.GetIds()))
		}
		out = make([]walimpls.Outcome, n)
		for i, id := range resp.GetIds() {
			out[i] = walimpls.Outcome{State: walimpls.Stored, ID: message.ID(id)}
		}
	} else {
		err := wire.ErrorFromProto(resp.GetError())
		var batch *walimpls.BatchError
		if errors.As(err, &batch) && len(batch.Outcomes) != n {
			return nil, protocolError(a.channel, "it answers %d records with %d outcomes", n, len(batch.Outcomes))
		}
		out = walimpls.Outcomes(a.channel, n, nil, err)
	}
	last := a.lastID
	for i := range out {
		if out[i].State != walimpls.Stored {
			continue
		}
		// The first record may have the all-zero id but never an empty one.
		if out[i].ID == "" || (last != "" && !last.Less(out[i].ID)) {
			return nil, protocolError(a.channel, "the id %s does not lie behind %s, the one before it", out[i].ID, last)
		}
		last = out[i].ID
	}
	a.lastID = last
	return out, nil
}
