package conformance

var reorderClauses = []Clause{
	{ID: "WAL-REORD-001", Level: LevelOrdered, Rule: 2, Depends: []string{"WAL-APP-002", "WAL-APP-005", "WAL-APP-007"},
		Because: "ticks, types and the order of batches must survive for the scanner to go by them",
		Text:    "Records that land out of tick order lie as they were appended; the host's scanner hands each out once, in tick order, when a time tick releases it, also one that waits at the end."},
	{ID: "WAL-REORD-002", Level: LevelOrdered, Rule: 2, Depends: []string{"WAL-REORD-001"},
		Because: "the repeats are put in order like all other records",
		Text:    "A record that is appended again is stored again, with an id of its own; the host's scanner hands it out once, whether the first waits or was released."},
	{ID: "WAL-REORD-003", Level: LevelOrdered, Rule: 4, Depends: []string{"WAL-REORD-001"},
		Because: "what is late is told by the order",
		Text:    "A record at or below a released tick that is no repeat ends the host's scanner with ErrCorrupt, or is dropped and counted, as its options say; nothing else is lost by it."},
	{ID: "WAL-REORD-004", Level: LevelOrdered, Rule: 1, Depends: []string{"WAL-REORD-001", "WAL-APP-006", "WAL-LIFE-004", "WAL-LIFE-011", "WAL-REORD-005"},
		Because: "pairs and fence records tell the owners apart, and it resumes at each checkpoint",
		Text:    "Over changes of the owner the host's scanner goes on in (term, tick) order; what a former owner left without a time tick comes at the next term's opening tick."},
	{ID: "WAL-REORD-005", Level: LevelOrdered, Rule: 4, Depends: []string{"WAL-REORD-001", "WAL-REORD-002", "WAL-SCAN-002", "WAL-SCAN-016", "WAL-ID-003"},
		Because: "a resumption is a start at an id, several run at once, and some records are in the log twice",
		Text:    "A reader that resumes at any checkpoint it was given gets what it had not got, and nothing else."},
}

var txnClauses = []Clause{
	{ID: "WAL-TXN-001", Level: LevelOrdered, Rule: 2, Depends: []string{"WAL-REORD-001"},
		Because: "the parts are put in order first",
		Text:    "A transaction is handed out whole and once, at its commit's tick, its records in tick order, however it is interleaved with others; one that is rolled back never is."},
	{ID: "WAL-TXN-002", Level: LevelOrdered, Rule: 1, Depends: []string{"WAL-TXN-001", "WAL-TXN-003", "WAL-REORD-004"},
		Because: "the transactions cross a change of the owner, and it resumes inside them",
		Text:    "A transaction goes on over re-opens within its term, and never appears if its term ends before its commit."},
	{ID: "WAL-TXN-003", Level: LevelOrdered, Rule: 4, Depends: []string{"WAL-TXN-001", "WAL-REORD-005"},
		Because: "it resumes inside transactions",
		Text:    "A reader that resumes at any checkpoint inside interleaved transactions, those of their parts included, gets each transaction whole or, if it had it, not at all."},
}
