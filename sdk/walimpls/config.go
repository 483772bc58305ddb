package walimpls

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Config is a plugin's configuration as it was written: strings, booleans,
// numbers, and lists of strings under the names of the Description's fields.
// Secrets are resolved already.
type Config map[string]any

// ConfigField describes one key of a backend's configuration. One table of them
// is the source of the check, the documentation and `walrig plugin describe`.
type ConfigField struct {
	Name string
	Type ConfigType
	// Default is used when the key is absent; nil means the type's zero value.
	Default any
	// Doc says what the key does, with its unit.
	Doc string
	// Required: the key must be given.
	Required bool
	// Secret: the value is never printed.
	Secret bool
	// OneOf lists the allowed values of a string, empty for any.
	OneOf []string
}

// ConfigType is the type of a configuration value.
type ConfigType string

// The types. Durations are written as "10s", sizes as "64MiB" or a number of bytes.
const (
	ConfigString   ConfigType = "string"
	ConfigBool     ConfigType = "bool"
	ConfigInt      ConfigType = "int"
	ConfigDuration ConfigType = "duration"
	ConfigBytes    ConfigType = "bytes"
	ConfigStrings  ConfigType = "strings"
)

func (t ConfigType) valid() bool {
	switch t {
	case ConfigString, ConfigBool, ConfigInt, ConfigDuration, ConfigBytes, ConfigStrings:
		return true
	}
	return false
}

// Values are checked configuration values with defaults filled in.
type Values map[string]any

// String returns the value of a string field. For it and its siblings: asking
// for a field that was not declared, or with another type, returns the zero value.
func (v Values) String(name string) string { s, _ := v[name].(string); return s }

// Bool returns the value of a bool field.
func (v Values) Bool(name string) bool { b, _ := v[name].(bool); return b }

// Int returns the value of an int field.
func (v Values) Int(name string) int64 { n, _ := v[name].(int64); return n }

// Duration returns the value of a duration field.
func (v Values) Duration(name string) time.Duration { d, _ := v[name].(time.Duration); return d }

// Bytes returns the value of a bytes field.
func (v Values) Bytes(name string) int64 { return v.Int(name) }

// Strings returns the value of a strings field.
func (v Values) Strings(name string) []string { s, _ := v[name].([]string); return s }

// Decode checks c against fields and returns the values with defaults filled
// in. All problems are reported at once, as one ErrInvalidArgument; an unknown
// key names the nearest one that exists.
func (c Config) Decode(fields []ConfigField) (Values, error) {
	var problems []string
	names := make([]string, len(fields))
	values := make(Values, len(fields))
	for i, f := range fields {
		names[i] = f.Name
		raw, given := c[f.Name]
		if !given || raw == nil {
			if f.Required {
				problems = append(problems, fmt.Sprintf("key %q is required: %s", f.Name, f.Doc))
				continue
			}
			raw = f.Default
		}
		v, err := f.parse(raw)
		if err != nil {
			if f.Secret {
				err = fmt.Errorf("the value, which is a secret and not shown, is not a valid %s", f.Type)
			}
			problems = append(problems, fmt.Sprintf("key %q: %v", f.Name, err))
			continue
		}
		values[f.Name] = v
	}
	for _, key := range sortedKeys(c) {
		if !slices.Contains(names, key) {
			problems = append(problems, fmt.Sprintf("unknown key %q%s", key, Suggest(key, names)))
		}
	}
	if len(problems) > 0 {
		return nil, Errorf(CodeInvalidArgument, "", "configuration: %s", strings.Join(problems, "; "))
	}
	return values, nil
}

// parse turns a written value into the Go value of the field and checks OneOf. A
// key without value and default is the zero value, whatever OneOf says.
func (f ConfigField) parse(raw any) (any, error) {
	v, err := f.Type.parse(raw)
	if err != nil || raw == nil || len(f.OneOf) == 0 {
		return v, err
	}
	if text, ok := v.(string); !ok || !slices.Contains(f.OneOf, text) {
		return nil, fmt.Errorf("%q is not one of %s", fmt.Sprint(v), strings.Join(f.OneOf, ", "))
	}
	return v, nil
}

// parse turns a written value into the Go value of the type; nil becomes zero.
func (t ConfigType) parse(raw any) (any, error) {
	text, isText := raw.(string)
	switch t {
	case ConfigString:
		switch v := raw.(type) {
		case nil:
			return "", nil
		case string:
			return v, nil
		case bool, int, int64, float64:
			return fmt.Sprint(v), nil
		}
	case ConfigBool:
		switch v := raw.(type) {
		case nil:
			return false, nil
		case bool:
			return v, nil
		case string:
			if b, err := strconv.ParseBool(v); err == nil {
				return b, nil
			}
		}
	case ConfigInt:
		if n, ok := integer(raw); ok {
			return n, nil
		}
	case ConfigDuration:
		if raw == nil {
			return time.Duration(0), nil
		}
		if d, ok := raw.(time.Duration); ok && d >= 0 {
			return d, nil
		}
		if d, err := time.ParseDuration(text); isText && err == nil && d >= 0 {
			return d, nil
		}
		return nil, fmt.Errorf("%v is not a duration such as 10s", raw)
	case ConfigBytes:
		if n, ok := integer(raw); ok && n >= 0 {
			return n, nil
		}
		if n, err := ParseBytes(text); isText && err == nil {
			return n, nil
		}
		return nil, fmt.Errorf("%v is not a size such as 64MiB", raw)
	case ConfigStrings:
		switch v := raw.(type) {
		case nil:
			return []string(nil), nil
		case []string:
			return slices.Clone(v), nil
		case string:
			if v == "" {
				return []string(nil), nil
			}
			return strings.Split(v, ","), nil
		case []any:
			out := make([]string, len(v))
			for i, e := range v {
				s, ok := e.(string)
				if !ok {
					return nil, fmt.Errorf("element %d is not a string", i+1)
				}
				out[i] = s
			}
			return out, nil
		}
	}
	return nil, fmt.Errorf("%v is not a %s", raw, t)
}

func integer(raw any) (int64, bool) {
	switch v := raw.(type) {
	case nil:
		return 0, true
	case int:
		return int64(v), true
	case int64:
		return v, true
	case uint64:
		return int64(v), v <= math.MaxInt64
	case float64:
		return int64(v), v == math.Trunc(v) && math.Abs(v) < 1<<53
	case string:
		n, err := strconv.ParseInt(v, 10, 64)
		return n, err == nil
	}
	return 0, false
}

var byteUnits = []struct {
	suffix string
	factor int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1},
}

// ParseBytes reads a size: a number of bytes, or a number with one of the units
// B, KB, MB, GB, TB, KiB, MiB, GiB, TiB.
func ParseBytes(text string) (int64, error) {
	number, factor := strings.TrimSpace(text), int64(1)
	for _, u := range byteUnits {
		if rest, ok := strings.CutSuffix(number, u.suffix); ok {
			number, factor = strings.TrimSpace(rest), u.factor
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/factor {
		return 0, fmt.Errorf("%q is not a size such as 64MiB", text)
	}
	return n * factor, nil
}

func sortedKeys(c Config) []string {
	keys := make([]string, 0, len(c))
	for k := range c {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// Suggest returns ` (did you mean "x"?)` for the name nearest to key, or ""
// when none is near.
func Suggest(key string, names []string) string {
	best, bestDistance := "", len(key)/2+1
	for _, name := range names {
		if d := editDistance(strings.ToLower(key), strings.ToLower(name)); d < bestDistance {
			best, bestDistance = name, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean %q?)", best)
}

// editDistance is the Levenshtein distance in bytes.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := diagonal
			if a[i-1] != b[j-1] {
				cost++
			}
			diagonal = row[j]
			row[j] = min(cost, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}
