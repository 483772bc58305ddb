package parquet

import (
	"io/fs"
	"slices"
)

// sortedKeys returns the keys of a folder's entries in key order, folders with
// their slash: "a-b" lies before "a/", though "a" lies before "a-b".
func sortedKeys(folder string, entries []fs.DirEntry) []string {
	keys := make([]string, len(entries))
	for i, e := range entries {
		keys[i] = folder + e.Name()
		if e.IsDir() {
			keys[i] += "/"
		}
	}
	slices.Sort(keys)
	return keys
}
