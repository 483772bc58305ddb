package scanner

import (
	"time"

	"github.com/walrig/walrig/sdk/message"
)

// Policy is the kind of a start.
type Policy int

// The starts.
const (
	All        Policy = iota // the earliest record
	Latest                   // behind every tick given out until now
	FromID                   // the record with the id, and what has a higher tick
	AfterID                  // what has a higher tick than the record with the id
	Checkpoint               // behind a checkpoint
)

// Options are the parameters of a Scanner.
type Options struct {
	// Name is for status and logs.
	Name string
	// Start, with ID for FromID and AfterID and Checkpoint for Checkpoint, says
	// where to begin.
	Start      Policy
	ID         message.ID
	Checkpoint message.Checkpoint
	// VChannel lets records of that vchannel and of "" pass; "" lets all pass.
	VChannel string
	// Types lets records of these types pass, nil every data record.
	Types []message.Type
	// System lets system records pass too, each as a unit of its own, and the
	// begins and commits of transactions inside theirs.
	System bool
	// DropLate drops late records and counts them instead of ending the scanner.
	DropLate bool
	// Until, if not nil, is where the scanner has caught up; nil is what was
	// given out when it began. Units behind it come after CaughtUp.
	Until *message.Checkpoint
	// MaxBytes bounds what one Next returns; a single unit may exceed it. 0 is 4 MiB.
	MaxBytes int
	// OnUnit, if not nil, is called by Next for each data unit that the scanner
	// meets, also for those that it skips or filters out, before they are handed
	// out: with the id of the unit's first record, and where the unit lies.
	OnUnit func(first message.ID, term int64, tick message.Tick)
	// ProgressEvery is the longest time without a checkpoint while ticks come; 0
	// is 500 ms.
	ProgressEvery time.Duration
}

func (o Options) withDefaults() Options {
	if o.MaxBytes <= 0 {
		o.MaxBytes = 4 << 20
	}
	if o.ProgressEvery <= 0 {
		o.ProgressEvery = 500 * time.Millisecond
	}
	return o
}

// Unit is what a reader is given at once: a record, a whole transaction, or
// progress alone.
type Unit struct {
	// Messages are the records that pass the filter; empty for progress. Those
	// of a transaction are in the order of their ticks.
	Messages []message.Message
	// Term and Tick place the unit: a transaction's are its commit's.
	Term int64
	Tick message.Tick
	// TxnID is the transaction's, 0 for a plain record.
	TxnID uint64
	// Before is the checkpoint of the unit before this one, Checkpoint this
	// unit's. All parts of a transaction but the last carry Before.
	Before, Checkpoint message.Checkpoint
	// CaughtUp is set once, on the first unit (progress as a rule) at which
	// everything was handed out that the log held when the scanner began.
	CaughtUp bool
}

func (u *Unit) bytes() int {
	n := 0
	for i := range u.Messages {
		n += u.Messages[i].Size() + 160
	}
	return n
}

// Mode says where a scanner reads.
type Mode string

// The modes.
const (
	CatchUp Mode = "catchup"
	Tailing Mode = "tailing"
)

// Status is what a scanner tells about itself.
type Status struct {
	Name string
	// Number is the reader's on its WAL, as long as it runs.
	Number uint64
	Mode   Mode
	// Checkpoint is the restart position.
	Checkpoint message.Checkpoint
	// Violations counts late records that were dropped.
	Violations int64
	// BufferedBytes is what the reorder and transaction buffers hold.
	BufferedBytes int64
}
