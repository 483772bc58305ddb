package conformance

var readOnlyClauses = []Clause{
	{ID: "WAL-RO-001", Level: LevelReadOnly, Rule: 4,
		Text: "A read-only Open of a missing log is ErrNotFound and creates nothing."},
	{ID: "WAL-RO-002", Level: LevelReadOnly, Rule: 4, Depends: []string{"WAL-SCAN-003", "WAL-SCAN-004", "WAL-SCAN-005", "WAL-RO-004", "WAL-LIFE-011"},
		Text: "A read-only handle reads the log, sees what its owner appends later, and its Channel carries the highest pair in the log."},
	{ID: "WAL-RO-003", Level: LevelReadOnly, Rule: 1, Depends: []string{"WAL-RO-004"},
		Text: "On a read-only handle Append and Truncate are ErrReadOnly."},
	{ID: "WAL-RO-004", Level: LevelReadOnly, Rule: 1,
		Text: "Read-only opens write nothing and fence nobody, however many there are."},
}

var fencingClauses = []Clause{
	{ID: "WAL-FENCE-001", Level: LevelFenced, Rule: 1,
		Text: "An Open with a pair at or below the highest in the store is FencedError and writes nothing; pairs are compared by term, then by incarnation."},
	{ID: "WAL-FENCE-002", Level: LevelFenced, Rule: 9, Depends: []string{"WAL-FENCE-001"},
		Text: "The FencedError of Open carries the highest pair in the store."},
	{ID: "WAL-FENCE-003", Level: LevelFenced, Rule: 1, Depends: []string{"WAL-FENCE-001"},
		Text: "After an Open of a higher term, no record of an earlier handle lands and none is acknowledged, before and after the new owner's first write; such an Append is ErrFenced."},
	{ID: "WAL-FENCE-004", Level: LevelFenced, Rule: 1, Depends: []string{"WAL-FENCE-001"},
		Text: "The same holds for an Open of the same term with a higher incarnation."},
	{ID: "WAL-FENCE-005", Level: LevelFenced, Rule: 1, Depends: []string{"WAL-FENCE-001"},
		Text: "A late Open of a lower term is refused before anything disturbs the present owner, a hundred times over, while it appends."},
	{ID: "WAL-FENCE-006", Level: LevelFenced, Rule: 1, Depends: []string{"WAL-FENCE-001", "WAL-FENCE-003", "WAL-FENCE-004", "WAL-APP-008", "WAL-APP-006", "WAL-APP-009"},
		Text: "Pairs along a log never decrease, whatever old handles do; what a handle was acknowledged lies before the fence record of the next."},
	{ID: "WAL-FENCE-007", Level: LevelFenced, Rule: 1, Depends: []string{"WAL-FENCE-001"},
		Text: "Of several Opens with one pair at most one returns a handle."},
	{ID: "WAL-FENCE-008", Level: LevelFenced, Needs: []Capability{CapTruncation}, Rule: 1, Depends: []string{"WAL-FENCE-001", "WAL-TRUNC-001"},
		Text: "Truncate on a fenced handle is ErrFenced and removes nothing."},
	{ID: "WAL-FENCE-009", Level: LevelFenced, Needs: []Capability{CapTruncation}, Rule: 5, Depends: []string{"WAL-FENCE-001", "WAL-TRUNC-001", "WAL-LIFE-006"},
		Text: "The highest pair outlives a truncation up to the newest record."},
	{ID: "WAL-FENCE-010", Level: LevelFenced, Rule: 1, Depends: []string{"WAL-FENCE-003", "WAL-SCAN-005"},
		Text: "A scanner of a fenced handle goes on in order or ends with an error; it never hangs, skips or repeats."},
	{ID: "WAL-FENCE-011", Level: LevelFenced, Needs: []Capability{CapDurability}, Rule: 1, Depends: []string{"WAL-FENCE-001", "WAL-RST-001", "WAL-LIFE-006"},
		Text: "The highest pair is known after a restart: pairs at or below it are refused, and higher ones open."},
}

var truncateClauses = []Clause{
	{ID: "WAL-TRUNC-001", Level: LevelTruncate, Rule: 5, Depends: []string{"WAL-SCAN-002"},
		Text: "Truncate(id) removes what lies before the id and keeps the record at it and all behind it; All begins there, and Bounds says so."},
	{ID: "WAL-TRUNC-002", Level: LevelTruncate, Rule: 5, Depends: []string{"WAL-TRUNC-001"},
		Text: "Truncate may be repeated; at an id behind the present point it is a no-op."},
	{ID: "WAL-TRUNC-003", Level: LevelTruncate, Rule: 5,
		Text: "Truncate above the latest id is ErrInvalidArgument and removes nothing; so is an id that is not the backend's."},
	{ID: "WAL-TRUNC-004", Level: LevelTruncate, Rule: 4, Depends: []string{"WAL-TRUNC-001", "WAL-ERR-002"},
		Text: "A start below the truncation point is PositionLostError."},
	{ID: "WAL-TRUNC-005", Level: LevelTruncate, Rule: 4, Depends: []string{"WAL-TRUNC-001"},
		Text: "A running scanner that falls below the truncation point gets PositionLostError; it never jumps."},
	{ID: "WAL-TRUNC-006", Level: LevelTruncate, Rule: 5, Depends: []string{"WAL-TRUNC-001"},
		Text: "The newest record always stays, and ids go on ascending behind it."},
	{ID: "WAL-TRUNC-007", Level: LevelTruncate, Rule: 5, Depends: []string{"WAL-TRUNC-001", "WAL-APP-008", "WAL-APP-009"},
		Text: "Truncation beside appends and readers loses nothing behind its point."},
	{ID: "WAL-TRUNC-008", Level: LevelDurable, Needs: []Capability{CapTruncation}, Rule: 5, Depends: []string{"WAL-TRUNC-001", "WAL-RST-001", "WAL-TRUNC-004"},
		Text: "A truncation survives a restart."},
	{ID: "WAL-TRUNC-009", Level: LevelSpace, Rule: 5, Depends: []string{"WAL-TRUNC-001"},
		Text: "Truncation frees space, when the description says: at once, or later by itself. What the store keeps for itself is at most 64 MiB and a 32nd of what was appended, and does not grow with what is appended and truncated."},
}

var dropClauses = []Clause{
	{ID: "WAL-DROP-001", Level: LevelDrop, Rule: 0, Depends: []string{"WAL-RO-001"},
		Text: "Drop deletes the log: a read-write Open after it finds an empty one with another store id, at any term."},
	{ID: "WAL-DROP-002", Level: LevelDrop, Rule: 0, Depends: []string{"WAL-DROP-001", "WAL-RO-001"},
		Text: "Drop may be repeated, and a missing log is success; a name that is not valid is ErrInvalidArgument."},
	{ID: "WAL-DROP-003", Level: LevelDrop, Needs: []Capability{CapFencing}, Rule: 1, Depends: []string{"WAL-DROP-001", "WAL-FENCE-001", "WAL-RO-001"},
		Text: "A Drop with a term below the highest in the log is FencedError and changes nothing."},
	{ID: "WAL-DROP-004", Level: LevelDrop, Rule: 1, Depends: []string{"WAL-DROP-001", "WAL-SCAN-004", "WAL-FENCE-003", "WAL-FENCE-004"},
		Text: "Drop fences the open handles of the log: their appends are refused and land nowhere, a re-created log included; their scanners end with an error."},
	{ID: "WAL-DROP-005", Level: LevelDrop, Rule: 0, Depends: []string{"WAL-DROP-001", "WAL-LIFE-007"},
		Text: "Drop leaves other channels alone, however alike their names are."},
	{ID: "WAL-DROP-006", Level: LevelDurable, Needs: []Capability{CapDrop}, Rule: 0, Depends: []string{"WAL-DROP-001", "WAL-RST-001", "WAL-RO-001"},
		Text: "A dropped log stays dropped after a restart."},
}

var unknownClauses = []Clause{
	{ID: "WAL-UNK-001", Level: LevelCore, Rule: 3, Depends: []string{"WAL-APP-012", "WAL-UNK-003"},
		Text: "An unknown outcome ends the handle: its further appends are refused as not stored, and are not."},
	{ID: "WAL-UNK-002", Level: LevelCore, Rule: 3, Depends: []string{"WAL-APP-012", "WAL-LIFE-011", "WAL-UNK-003"},
		Text: "An Open with a higher pair settles what was unknown: a record of an earlier handle lies before the new handle's first record, or never appears."},
	{ID: "WAL-UNK-003", Level: LevelCore, Rule: 3, Depends: []string{"WAL-APP-012", "WAL-APP-007", "WAL-APP-008", "WAL-APP-009"},
		Text: "A record whose outcome is unknown is stored at most once, whole, and says ErrUnknownOutcome, which no retry mends."},
}

var restartClauses = []Clause{
	{ID: "WAL-RST-001", Level: LevelDurable, Rule: 2, Depends: []string{"WAL-LIFE-011", "WAL-APP-003", "WAL-APP-004", "WAL-APP-005"},
		Text: "After an orderly restart every acknowledged record is there, once, with its id and contents, in order."},
	{ID: "WAL-RST-002", Level: LevelDurable, Rule: 6, Depends: []string{"WAL-RST-001", "WAL-SCAN-002", "WAL-SCAN-003", "WAL-SCAN-004", "WAL-ID-001"},
		Text: "An id that was stored before a restart is the same start after it."},
	{ID: "WAL-RST-003", Level: LevelDurable, Rule: 6, Depends: []string{"WAL-RST-001"},
		Text: "Ids and store id go on after a restart: new ids lie above all old ones, and the store id is the same."},
}

var crashClauses = []Clause{
	{ID: "WAL-CRASH-001", Level: LevelDurable, Rule: 2, Depends: []string{"WAL-RST-001", "WAL-APP-008", "WAL-APP-009"},
		Text: "After a kill during appends every acknowledged record is there, once, with its id and contents; what was refused is not; what is unknown is there at most once."},
	{ID: "WAL-CRASH-002", Level: LevelDurable, Rule: 1, Depends: []string{"WAL-RST-001", "WAL-FENCE-001"},
		Text: "A pair whose Open returned is durable: after a kill it is refused, and the next opens. A kill during Open harms nothing that was there."},
	{ID: "WAL-CRASH-003", Level: LevelDurable, Needs: []Capability{CapTruncation}, Rule: 5, Depends: []string{"WAL-RST-001", "WAL-TRUNC-001", "WAL-TRUNC-008"},
		Text: "After a kill during Truncate the log begins at or before the point, at it if Truncate returned, and has no hole."},
	{ID: "WAL-CRASH-004", Level: LevelDurable, Rule: 2, Depends: []string{"WAL-RST-001", "WAL-SCAN-005", "WAL-CRASH-001"},
		Text: "A scanner returns durable records only: what one returned before a kill is there after it."},
	{ID: "WAL-CRASH-005", Level: LevelDurable, Needs: []Capability{CapDrop}, Rule: 0, Depends: []string{"WAL-RST-001", "WAL-DROP-001", "WAL-DROP-006"},
		Text: "After a kill during Drop the log is there whole or gone, and gone if Drop returned."},
}

var sharedClauses = []Clause{
	{ID: "WAL-SHARE-001", Level: LevelShared, Rule: 1, Depends: []string{"WAL-FENCE-003", "WAL-CRASH-001", "WAL-RST-001"}, Needs: []Capability{CapFencing},
		Text: "Fencing reaches over processes: a handle in one is fenced by an Open in another, which sees every record of the first."},
}
