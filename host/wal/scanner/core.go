package scanner

import (
	"slices"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// core turns records into units. It has no clock and no I/O.
type core struct {
	channel string
	storeID string
	opt     Options

	reorder *reorder
	txns    *txns
	// highest is the highest pair seen; records below it are stale.
	highest walimpls.Pair
	// skip is the start: units that it covers are not handed out. at is the
	// restart position.
	skip, at message.Checkpoint
	// out collects units; progressed says that at moved since the last of them.
	out        []Unit
	progressed bool
}

func newCore(channel, storeID string, opt Options) *core {
	c := &core{channel: channel, storeID: storeID, opt: opt}
	c.restart(message.Checkpoint{StoreID: storeID})
	return c
}

// restart begins with empty buffers behind a checkpoint.
func (c *core) restart(at message.Checkpoint) {
	violations := int64(0)
	if c.reorder != nil {
		violations = c.reorder.violations
	}
	c.reorder = newReorder(c.channel, c.opt.DropLate)
	c.reorder.violations = violations
	c.txns = newTxns(c.channel)
	c.highest = walimpls.Pair{Term: at.Term}
	c.skip, c.at = at, at
}

// read takes a record from the backend. tick is set when it was a time tick
// that counted: everything up to it was released.
func (c *core) read(m message.Message) (tick message.Tick, term int64, err error) {
	pair := walimpls.Pair{Term: m.Term, Incarnation: m.Incarnation}
	if pair.Compare(c.highest) < 0 {
		return 0, 0, nil
	}
	c.highest = pair
	if m.Type == message.TypeFence {
		return 0, 0, nil
	}
	if m.TxnID == 0 && m.TimeTick <= c.reorder.last && c.skip.Covers(m.Term, m.TimeTick) {
		// A repeat of what the start covers: the memory of it was another reader's.
		return 0, 0, nil
	}
	if m.TxnID != 0 {
		// It may wait long for its commit, and must not keep the batch that it
		// came in. The write-ahead buffer's records are shared by all readers.
		m = m.Clone()
	}
	if m.Type != message.TypeTimeTick {
		return 0, 0, c.reorder.push(m)
	}
	if m.TimeTick <= c.reorder.last {
		return 0, 0, nil
	}
	released, err := c.reorder.release(m.TimeTick)
	if err != nil {
		return 0, 0, err
	}
	if err := c.take(released); err != nil {
		return 0, 0, err
	}
	return m.TimeTick, m.Term, c.take([]message.Message{m})
}

// switched clears the reorder buffer: what waits there comes from the
// write-ahead buffer.
func (c *core) switched() {
	v := c.reorder.violations
	c.reorder = newReorder(c.channel, c.opt.DropLate)
	c.reorder.violations = v
}

// take takes records in tick order. Units refer to the slice's elements.
func (c *core) take(records []message.Message) error {
	if len(records) > 1 {
		c.out = slices.Grow(c.out, len(records))
	}
	for i := range records {
		m := &records[i]
		switch {
		case m.Type == message.TypeTimeTick:
			c.txns.newTerm(m.Term)
			if c.opt.System && m.ID != "" {
				c.plain(records[i : i+1 : i+1])
			}
			c.progress(m)
		case m.Type == message.TypeBeginTxn:
			c.txns.begin(*m)
		case m.Type == message.TypeRollbackTxn:
			c.txns.drop(m.TxnID)
		case m.Type == message.TypeCommitTxn:
			if err := c.commit(m); err != nil {
				return err
			}
		case m.TxnID != 0:
			c.txns.body(*m)
		default:
			c.plain(records[i : i+1 : i+1])
		}
	}
	return nil
}

// lastConfirmed is the record's own id where it has no other.
func lastConfirmed(m *message.Message) message.ID {
	if m.LastConfirmed == "" {
		return m.ID
	}
	return m.LastConfirmed
}

func (c *core) checkpoint(m *message.Message) message.Checkpoint {
	return message.Checkpoint{StoreID: c.storeID, ID: lastConfirmed(m), Term: m.Term, Tick: m.TimeTick}
}

// progress moves the restart position to a time tick.
func (c *core) progress(m *message.Message) {
	if c.skip.Covers(m.Term, m.TimeTick) || c.at.Covers(m.Term, m.TimeTick) {
		return
	}
	c.at = c.checkpoint(m)
	c.progressed = true
}

// plain hands out a record that is a unit of its own.
func (c *core) plain(record []message.Message) {
	m := &record[0]
	if m.Type == message.TypeData {
		c.met(m.ID, m)
	}
	if c.skip.Covers(m.Term, m.TimeTick) {
		return
	}
	if !c.passes(m) {
		record = nil
	}
	c.hand(record, m, 0)
}

func (c *core) commit(m *message.Message) error {
	skipped := c.skip.Covers(m.Term, m.TimeTick)
	parts, err := c.txns.commit(*m)
	if len(parts) > 2 { // more than begin and commit
		c.met(parts[0].ID, m)
	}
	if skipped || parts == nil {
		if skipped {
			err = nil
		}
		return err
	}
	messages := make([]message.Message, 0, len(parts))
	for i := range parts {
		if c.passes(&parts[i]) {
			messages = append(messages, parts[i])
		}
	}
	c.hand(messages, m, m.TxnID)
	return nil
}

// met tells of a data unit.
func (c *core) met(first message.ID, end *message.Message) {
	if c.opt.OnUnit != nil {
		c.opt.OnUnit(first, end.Term, end.TimeTick)
	}
}

// hand hands a unit out; one that the filter empties moves the position alone.
func (c *core) hand(messages []message.Message, end *message.Message, txn uint64) {
	before := c.at
	c.at = c.checkpoint(end)
	if len(messages) == 0 {
		c.progressed = true
		return
	}
	u := Unit{Messages: messages, Term: end.Term, Tick: end.TimeTick, TxnID: txn, Before: before, Checkpoint: c.at}
	c.out = append(c.out, u)
	c.progressed = false
}

// passes is the filter.
func (c *core) passes(m *message.Message) bool {
	if m.Type.IsSystem() {
		return c.opt.System
	}
	if c.opt.VChannel != "" && m.VChannel != "" && m.VChannel != c.opt.VChannel {
		return false
	}
	return len(c.opt.Types) == 0 || slices.Contains(c.opt.Types, m.Type)
}

// drain returns what is ready: at most limit units of maxBytes, but at least
// one if limit allows any.
func (c *core) drain(limit, maxBytes int) []Unit {
	n, bytes := 0, 0
	for n < limit && (n == 0 || bytes < maxBytes) {
		bytes += c.out[n].bytes()
		n++
	}
	if n == 0 {
		return nil
	}
	out := c.out[:n:n]
	c.out = c.out[n:]
	if len(c.out) == 0 {
		c.out = nil
	}
	return out
}

// bufferedBytes is what waits for a tick or for a commit.
func (c *core) bufferedBytes() int64 { return int64(c.reorder.bytes + c.txns.bytes) }
