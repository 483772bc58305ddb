package owner

import (
	"encoding/binary"
	"slices"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// TxnState is where a transaction stands.
type TxnState uint8

// The states of a transaction; it leaves the table when its commit or rollback
// is stored, or its begin failed.
const (
	TxnBeginning TxnState = iota
	TxnOpen
	TxnCommitting  // asked to commit, bodies are unresolved
	TxnRollingBack // asked to roll back, bodies are unresolved
	TxnEndSent     // its commit or rollback has a tick
)

// Txn is an open transaction. Its id is its Begin's tick.
type Txn struct {
	ID       uint64
	VChannel string
	State    TxnState
	// LastConfirmed is its Begin record's.
	LastConfirmed message.ID
	// Bodies counts the stored bodies, Failed the failed ones, Bytes what was
	// counted in.
	Bodies, Failed int
	Bytes          int
	// Doomed: an exclusive record forbids the commit.
	Doomed bool

	known message.ID
	open  int          // unresolved records, the begin included
	end   message.Tick // of its stored commit or rollback
}

// Begin accepts a transaction's first record at the tick, which becomes the
// transaction's id.
func (c *Core) Begin(m message.Message, tick message.Tick) (*Txn, *Batch) {
	m.Type, m.TxnID = message.TypeBeginTxn, uint64(tick)
	b := c.Accept([]message.Message{m}, tick, true)
	t := &Txn{ID: uint64(tick), VChannel: m.VChannel, LastConfirmed: b.Messages[0].LastConfirmed, known: b.known, open: 1}
	c.txns[t.ID] = t
	c.open = append(c.open, t)
	return t, b
}

// Txn returns an open transaction, nil if there is none of that id.
func (c *Core) Txn(id uint64) *Txn { return c.txns[id] }

// Txns returns the open transactions in the order of their begins.
func (c *Core) Txns() []*Txn { return slices.Clone(c.open) }

// AddBodies counts n bodies of size bytes in, which are accepted next. It
// refuses a transaction that cannot take any.
func (c *Core) AddBodies(channel string, id uint64, n, bytes, limit int) error {
	t := c.txns[id]
	switch {
	case t == nil:
		return txnError(channel, walimpls.CodeTxnNotFound, id, "is not open: it ended, expired, or belongs to another term")
	case t.State != TxnOpen && t.State != TxnBeginning:
		return txnError(channel, walimpls.CodeTxnState, id, "is ending and takes no more records")
	case limit > 0 && t.Bytes+bytes > limit:
		return txnError(channel, walimpls.CodeTooLarge, id, "would exceed the limit of %d bytes", limit)
	}
	t.open += n
	t.Bytes += bytes
	return nil
}

// FailBodies gives n bodies back that were counted in and not accepted.
func (c *Core) FailBodies(id uint64, n, bytes int) {
	if t := c.txns[id]; t != nil {
		t.open -= n
		t.Bytes -= bytes
		t.Failed += n
	}
}

// FailTxn notes that a record of the transaction was refused before it was
// counted in: the transaction cannot commit any more.
func (c *Core) FailTxn(id uint64) {
	if t := c.txns[id]; t != nil {
		t.Failed++
	}
}

// AskEnd asks for the end of a transaction; EndReady says when its record may
// be accepted.
func (c *Core) AskEnd(channel string, id uint64, commit bool) error {
	t := c.txns[id]
	switch {
	case t == nil:
		return txnError(channel, walimpls.CodeTxnNotFound, id, "is not open: it ended, expired, or belongs to another term")
	case t.State != TxnOpen && t.State != TxnBeginning:
		return txnError(channel, walimpls.CodeTxnState, id, "is ending already")
	}
	t.State = TxnRollingBack
	if commit {
		t.State = TxnCommitting
	}
	c.ending[id] = t
	return nil
}

// Doom makes every transaction that is open on the vchannel ("" for all) roll
// back: an exclusive record gets its tick now, and none begun before may commit
// behind it. A commit that has its tick already is left alone, but if it turns
// out not to be stored it is the last one.
func (c *Core) Doom(vchannel string) {
	for _, t := range c.open {
		if vchannel != "" && t.VChannel != "" && t.VChannel != vchannel {
			continue
		}
		t.Doomed = true
		if t.State == TxnEndSent {
			continue
		}
		if t.State != TxnCommitting {
			t.State = TxnRollingBack
		}
		c.ending[t.ID] = t
	}
}

// Ending returns the transactions whose end may be accepted now.
func (c *Core) Ending() []uint64 {
	var ids []uint64
	for id, t := range c.ending {
		if t.open == 0 {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// TakeEnded returns the transactions that ended since the last call.
func (c *Core) TakeEnded() []uint64 {
	ended := c.ended
	c.ended = nil
	return ended
}

// End is the record that ends a transaction, ready to be accepted.
type End struct {
	Txn     *Txn
	Message message.Message
	// Refused: a commit was asked for and a body failed, so this is a rollback.
	Refused bool
}

// EndReady returns the end record of a transaction that is asked to end and
// whose bodies are all resolved, and marks it as sent; nil if it is not ready.
func (c *Core) EndReady(id uint64) *End {
	t := c.txns[id]
	if t == nil || (t.State != TxnCommitting && t.State != TxnRollingBack) || t.open > 0 {
		return nil
	}
	e := &End{Txn: t, Message: message.Message{Type: message.TypeRollbackTxn, TxnID: id, VChannel: t.VChannel}}
	if t.State == TxnCommitting {
		if t.Failed > 0 || t.Doomed {
			e.Refused = true
		} else {
			e.Message.Type = message.TypeCommitTxn
			e.Message.Payload = binary.AppendUvarint(nil, uint64(t.Bodies))
		}
	}
	t.State = TxnEndSent
	delete(c.ending, id)
	return e
}

// BodyCount returns the body count that a commit record carries.
func BodyCount(commit *message.Message) (uint64, bool) {
	n, size := binary.Uvarint(commit.Payload)
	return n, size > 0 && size == len(commit.Payload)
}

func (c *Core) txnStored(m *message.Message) {
	t := c.txns[m.TxnID]
	if m.TxnID == 0 || t == nil {
		return
	}
	switch m.Type {
	case message.TypeBeginTxn:
		t.open--
		if t.State == TxnBeginning {
			t.State = TxnOpen
		}
	case message.TypeCommitTxn, message.TypeRollbackTxn:
		c.endTxn(t)
		if t.end = m.TimeTick; t.end > c.released {
			c.unreleased = append(c.unreleased, t)
		}
	default:
		t.open--
		t.Bodies++
	}
}

func (c *Core) txnFailed(m *message.Message) {
	t := c.txns[m.TxnID]
	if m.TxnID == 0 || t == nil {
		return
	}
	switch m.Type {
	case message.TypeBeginTxn:
		c.endTxn(t)
	case message.TypeCommitTxn, message.TypeRollbackTxn:
		// Still open: it may be asked to end again, and expiry rolls it back.
		t.State = TxnOpen
	default:
		t.open--
		t.Failed++
	}
}

func (c *Core) endTxn(t *Txn) {
	delete(c.txns, t.ID)
	delete(c.ending, t.ID)
	c.ended = append(c.ended, t.ID)
	c.open = slices.DeleteFunc(c.open, func(o *Txn) bool { return o == t })
}

func txnError(channel string, code walimpls.Code, id uint64, format string, args ...any) error {
	return walimpls.Errorf(code, channel, "transaction %d "+format, append([]any{id}, args...)...)
}
