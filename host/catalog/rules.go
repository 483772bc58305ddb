package catalog

import (
	"slices"

	"github.com/walrig/walrig/sdk/walimpls"
)

// The rules of every implementation: plain functions of rows, without a store.

// Clone returns a copy that shares no memory with r.
func (r Row) Clone() Row {
	r.Checkpoints = slices.Clone(r.Checkpoints)
	r.VChannels = slices.Clone(r.VChannels)
	if r.TruncatedBefore != nil {
		point := *r.TruncatedBefore
		r.TruncatedBefore = &point
	}
	return r
}

// maxStoreIDBytes is walimpls' bound on a store id.
const maxStoreIDBytes = 200

// check refuses what could not be stored and read back unchanged.
func (r *Row) check(op string) error {
	if err := walimpls.ValidateName("channel", r.Channel); err != nil {
		return err
	}
	bad := func(format string, args ...any) error {
		return walimpls.Errorf(walimpls.CodeInvalidArgument, r.Channel, op+": "+format, args...)
	}
	if err := walimpls.ValidateName("plugin", r.Plugin); r.Plugin != "" && err != nil {
		return bad("%v", err)
	}
	if err := walimpls.ValidateName("backend", r.Backend); r.Backend != "" && err != nil {
		return bad("%v", err)
	}
	if len(r.StoreID) > maxStoreIDBytes {
		return bad("the store id has %d bytes, more than %d", len(r.StoreID), maxStoreIDBytes)
	}
	for i := 0; i < len(r.StoreID); i++ {
		if c := r.StoreID[i]; c < ' ' || c > '~' {
			return bad("the store id is not printable ASCII")
		}
	}
	if r.Term < 0 {
		return bad("term %d is negative", r.Term)
	}
	seen := make(map[string]bool, len(r.VChannels))
	for _, v := range r.VChannels {
		if err := walimpls.ValidateName("vchannel", v.Name); v.Name != "" && err != nil {
			return bad("%v", err)
		}
		if seen[v.Name] {
			return bad("vchannel %q is listed twice", v.Name)
		}
		seen[v.Name] = true
	}
	return nil
}

// checkNew refuses a row that Create may not add.
func (r *Row) checkNew() error {
	if err := r.check("create"); err != nil {
		return err
	}
	if r.Term != 0 {
		return walimpls.Errorf(walimpls.CodeInvalidArgument, r.Channel,
			"create: a new row has term 0, not %d: claim the term afterwards", r.Term)
	}
	return nil
}

// checkClaim says whether term may claim r.
func (r *Row) checkClaim(term int64) error {
	if term < 1 {
		return walimpls.Errorf(walimpls.CodeInvalidArgument, r.Channel, "claim: term %d, want 1 or more", term)
	}
	if term > r.Term {
		return nil
	}
	err := walimpls.Errorf(walimpls.CodeTermExpired, r.Channel,
		"claim: term %d is not above %d, the highest that claimed the channel", term, r.Term)
	err.Hint = "open the channel with a higher term"
	return err
}

// checkTerm says whether a write of the owner at term may touch r.
func (r *Row) checkTerm(op string, term int64) error {
	if term == r.Term {
		return nil
	}
	return walimpls.Errorf(walimpls.CodeTermExpired, r.Channel,
		"%s: the caller's term is %d, the catalog holds term %d", op, term, r.Term)
}

// checkChange says whether an Update may turn before into after.
func checkChange(before, after *Row) error {
	refuse := func(format string, args ...any) error {
		return walimpls.Errorf(walimpls.CodeInvalidArgument, before.Channel, "update: "+format, args...)
	}
	if after.Channel != before.Channel {
		return refuse("the channel's name may not change (to %q)", after.Channel)
	}
	if after.Term != before.Term {
		return refuse("the term may not change (from %d to %d): claim it", before.Term, after.Term)
	}
	if after.TickBound < before.TickBound {
		return refuse("the tick bound may not go back (from %d to %d)", before.TickBound, after.TickBound)
	}
	if old := before.TruncatedBefore; old != nil && after.StoreID == before.StoreID {
		if after.TruncatedBefore == nil {
			return refuse("the truncation point %s may not be forgotten", old.ID)
		}
		if after.TruncatedBefore.ID.Less(old.ID) {
			return refuse("the truncation point may not go back (from %s to %s)", old.ID, after.TruncatedBefore.ID)
		}
	}
	return after.check("update")
}

// applyUpdate runs change on a copy of before and returns the row to write. A
// pointer that change keeps does not reach into it.
func applyUpdate(before Row, term int64, change func(*Row) error) (Row, error) {
	if err := before.checkTerm("update", term); err != nil {
		return Row{}, err
	}
	shown := before.Clone()
	if change != nil {
		if err := change(&shown); err != nil {
			return Row{}, err
		}
	}
	after := shown.Clone()
	if err := checkChange(&before, &after); err != nil {
		return Row{}, err
	}
	return after, nil
}

func notFound(channel string) error {
	err := walimpls.Errorf(walimpls.CodeNotFound, channel, "the catalog has no such channel")
	err.Hint = "create it with: walrig channel create NAME"
	return err
}

func alreadyExists(channel string) error {
	return walimpls.Errorf(walimpls.CodeAlreadyExists, channel, "the catalog has this channel already")
}

func closedError() error {
	return walimpls.Errorf(walimpls.CodeClosed, "", "the catalog is closed")
}
