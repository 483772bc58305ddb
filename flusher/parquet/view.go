package parquet

import "strings"

// listing is what a log's owners and manifests folders hold.
type listing struct {
	highest owner    // the highest owner that announced itself
	claimed owner    // the highest owner with a claim; zero: none
	stale   []string // keys of owners below the claimed one
}

// readOwners sorts the keys of an owners folder.
func readOwners(l layout, keys []string) listing {
	var out listing
	claims := map[owner]bool{}
	for _, key := range keys {
		name := strings.TrimPrefix(key, l.owners())
		o, ok := parseOwner(strings.TrimSuffix(strings.TrimSuffix(name, ".intent"), ".json"))
		if !ok {
			continue
		}
		if out.highest.less(o) {
			out.highest = o
		}
		if strings.HasSuffix(name, ".json") {
			claims[o] = true
			if out.claimed.less(o) {
				out.claimed = o
			}
		}
	}
	for _, key := range keys {
		name := strings.TrimPrefix(key, l.owners())
		o, ok := parseOwner(strings.TrimSuffix(strings.TrimSuffix(name, ".intent"), ".json"))
		if ok && o.less(out.claimed) {
			out.stale = append(out.stale, key)
		}
	}
	return out
}

// newestManifests applies the rule that decides what counts: the newest manifest
// of the last owner, or else the one that this owner found. Everything else is
// superseded, or was written too late.
func newestManifests(l layout, last *claim, keys []string) (newest map[string]ref, rest []string) {
	newest = map[string]ref{}
	if last == nil {
		return newest, keys
	}
	for v, name := range last.Newest {
		if r, ok := parseRef(name); ok {
			newest[v] = r
		}
	}
	by := owner{Term: last.Term, Open: last.Open}
	type found struct {
		vchannel string
		ref      ref
		key      string
	}
	all := make([]found, 0, len(keys))
	for _, key := range keys {
		folder, name, ok := strings.Cut(strings.TrimPrefix(key, l.manifests()), "/")
		v, ok2 := unescapeName(folder)
		r, ok3 := parseRef(strings.TrimSuffix(name, manifestSuffix))
		if !ok || !ok2 || !ok3 || !strings.HasSuffix(name, manifestSuffix) {
			continue
		}
		all = append(all, found{v, r, key})
		if r.At.Owner == by && newest[v].At.less(r.At) {
			newest[v] = r
		}
	}
	for _, f := range all {
		if newest[f.vchannel] != f.ref {
			rest = append(rest, f.key)
		}
	}
	return newest, rest
}
