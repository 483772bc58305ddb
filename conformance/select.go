package conformance

// Select returns the checks that Run with these options would select, in the
// order of the specification. The error is the one that Run would return.
func Select(opt Options) ([]CheckInfo, error) {
	ids, err := selection(opt)
	if err != nil {
		return nil, err
	}
	var out []CheckInfo
	for _, c := range List() {
		if ids[c.ID] {
			out = append(out, c)
		}
	}
	return out, nil
}
