package scanner

import (
	"github.com/walrig/walrig/host/wal/owner"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// txns gathers the parts of transactions until they end.
type txns struct {
	channel string
	open    map[uint64]*openTxn
	bytes   int
}

type openTxn struct {
	term  int64
	parts []message.Message // the begin first
	bytes int
}

func newTxns(channel string) *txns { return &txns{channel: channel, open: map[uint64]*openTxn{}} }

// begin opens a transaction; a second begin of one id is ignored.
func (t *txns) begin(m message.Message) {
	if t.open[m.TxnID] == nil {
		t.open[m.TxnID] = &openTxn{term: m.Term, parts: []message.Message{m}}
	}
}

// body adds a record; one of an unknown transaction is ignored.
func (t *txns) body(m message.Message) {
	if o := t.open[m.TxnID]; o != nil {
		o.parts = append(o.parts, m)
		o.bytes += m.Size()
		t.bytes += m.Size()
	}
}

// commit ends a transaction and returns its parts, the commit last; nil for one
// whose begin was not seen. It is ErrCorrupt when bodies are missing.
func (t *txns) commit(m message.Message) ([]message.Message, error) {
	o := t.open[m.TxnID]
	if o == nil {
		return nil, nil
	}
	t.drop(m.TxnID)
	want, ok := owner.BodyCount(&m)
	if got := uint64(len(o.parts) - 1); !ok || want != got {
		return nil, walimpls.Errorf(walimpls.CodeCorrupt, t.channel, "transaction %d: its commit counts %d records, %d are in the log", m.TxnID, want, got)
	}
	return append(o.parts, m), nil
}

// drop forgets a transaction.
func (t *txns) drop(id uint64) {
	if o := t.open[id]; o != nil {
		t.bytes -= o.bytes
		delete(t.open, id)
	}
}

// newTerm ends the transactions of older terms: they can never commit.
func (t *txns) newTerm(term int64) {
	for id, o := range t.open {
		if o.term < term {
			t.drop(id)
		}
	}
}
