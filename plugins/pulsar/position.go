package pulsar

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"github.com/walrig/walrig/sdk/message"
)

// idLayout is the layout of the ids: ledger, entry, index of the record in its
// Pulsar message. Ledgers of a topic grow, so the byte order is the log order.
const idLayout message.Layout = "u64.u64.u32"

const idBytes = 20

// entry is the place of one Pulsar message. Entries are numbered from 0 in each ledger.
type entry struct {
	ledger, entry int64
}

func (e entry) compare(f entry) int {
	if c := cmp.Compare(e.ledger, f.ledger); c != 0 {
		return c
	}
	return cmp.Compare(e.entry, f.entry)
}

func (e entry) String() string { return fmt.Sprintf("%d:%d", e.ledger, e.entry) }

// parseEntry reads "ledger:entry", as Pulsar's statistics print it.
func parseEntry(text string) (entry, error) {
	l, e, ok := strings.Cut(text, ":")
	if !ok {
		return entry{}, fmt.Errorf("%q is not ledger:entry", text)
	}
	ledger, err := strconv.ParseInt(l, 10, 64)
	if err != nil {
		return entry{}, fmt.Errorf("%q is not ledger:entry: %w", text, err)
	}
	n, err := strconv.ParseInt(e, 10, 64)
	if err != nil {
		return entry{}, fmt.Errorf("%q is not ledger:entry: %w", text, err)
	}
	return entry{ledger, n}, nil
}

// id returns the id of record number index of the message at e.
func (e entry) id(index int) message.ID {
	var b [idBytes]byte
	binary.BigEndian.PutUint64(b[0:], uint64(e.ledger))
	binary.BigEndian.PutUint64(b[8:], uint64(e.entry))
	binary.BigEndian.PutUint32(b[16:], uint32(index))
	return message.ID(b[:])
}

// parseID takes an id apart; ok is false for what cannot be one of this backend.
func parseID(id message.ID) (e entry, index int, ok bool) {
	if len(id) != idBytes || id.IsZero() {
		return entry{}, 0, false
	}
	b := []byte(id)
	ledger, n := binary.BigEndian.Uint64(b[0:]), binary.BigEndian.Uint64(b[8:])
	if ledger > 1<<63-1 || n > 1<<63-1 {
		return entry{}, 0, false
	}
	return entry{int64(ledger), int64(n)}, int(binary.BigEndian.Uint32(b[16:])), true
}
