package message

import "strconv"

// Type says what a record is. The numbers are stored and never change meaning.
type Type uint32

// The record types. All but Data are system records: applications never see
// them unless they ask, and cannot append them by hand.
const (
	// TypeInvalid is the zero value; no stored record has it.
	TypeInvalid Type = 0
	// TypeData is an application's record.
	TypeData Type = 1
	// TypeFence is the control record that a backend writes at the end of a
	// read-write Open. It carries its (term, incarnation) pair and nothing
	// else: no tick, no payload, no properties. The host drops it.
	TypeFence Type = 2
	// TypeTimeTick says: no record with a tick at or below mine follows me.
	TypeTimeTick Type = 3
	// TypeBarrier ends the read-back after an unknown outcome. It has a tick
	// but promises nothing about later records.
	TypeBarrier Type = 4
	// TypeBeginTxn, TypeCommitTxn and TypeRollbackTxn bound a transaction;
	// its bodies are ordinary records that carry its TxnID.
	TypeBeginTxn    Type = 5
	TypeCommitTxn   Type = 6
	TypeRollbackTxn Type = 7
	// TypeCreateVChannel, TypeDropVChannel and TypeFlush control the flusher.
	TypeCreateVChannel Type = 8
	TypeDropVChannel   Type = 9
	TypeFlush          Type = 10
)

var typeNames = map[Type]string{
	TypeInvalid: "invalid", TypeData: "data", TypeFence: "fence", TypeTimeTick: "time_tick",
	TypeBarrier: "barrier", TypeBeginTxn: "begin_txn", TypeCommitTxn: "commit_txn",
	TypeRollbackTxn: "rollback_txn", TypeCreateVChannel: "create_vchannel",
	TypeDropVChannel: "drop_vchannel", TypeFlush: "flush",
}

// String returns the name that scripts see ("data"), or "type(N)" for a number
// that this version does not know.
func (t Type) String() string {
	if name, ok := typeNames[t]; ok {
		return name
	}
	return "type(" + strconv.FormatUint(uint64(t), 10) + ")"
}

// IsSystem reports whether records of this type are made by walrig itself.
func (t Type) IsSystem() bool { return t != TypeData }

// IsTxn reports whether the type begins or ends a transaction.
func (t Type) IsTxn() bool {
	return t == TypeBeginTxn || t == TypeCommitTxn || t == TypeRollbackTxn
}

// IsExclusive reports whether no other append may be under way on the record's
// vchannel (or, for the vchannel "", on the whole pchannel) while it is appended.
func (t Type) IsExclusive() bool { return t == TypeCreateVChannel || t == TypeDropVChannel }
