package config

import (
	"encoding/hex"
	"math"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/walrig/walrig/sdk/walimpls"
)

// resolve returns the text of a scalar, or of the secret that a reference
// names. shown is what may be printed instead of it, "" if the text may.
func (l *loader) resolve(n *node, key string, secret bool) (text, shown string) {
	if n.kind == kindMap {
		return l.reference(n, key)
	}
	if secret {
		return n.text, Hidden
	}
	return n.text, ""
}

// reference resolves {env: NAME} or {file: PATH}.
func (l *loader) reference(n *node, key string) (text, shown string) {
	env, file := n.at("env"), n.at("file")
	ref := env
	if ref == nil {
		ref = file
	}
	if len(n.fields) != 1 || ref == nil || ref.kind != kindScalar || ref.text == "" {
		l.problem(n.source, key, "a map is not a value here; a secret is written {env: NAME} or {file: PATH}")
		return "", Hidden
	}
	if ref == env {
		value, set := l.env[env.text]
		switch {
		case !set:
			l.problem(n.source, key, "the environment variable %s is not set", env.text)
		case value == "":
			l.problem(n.source, key, "the environment variable %s is empty", env.text)
		}
		return value, "{env: " + env.text + "}"
	}
	data, err := readBounded(file.text)
	// One line end at the end is the editor's, not the secret's.
	value := strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
	switch {
	case err != nil:
		l.problem(n.source, key, "the secret's file %s cannot be read: %v", file.text, cause(err))
	case value == "":
		l.problem(n.source, key, "the secret's file %s is empty", file.text)
	}
	return value, "{file: " + file.text + "}"
}

var backendName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`)

// check tests the text of a key against its type and returns its canonical
// form. What a secret key holds is never quoted.
func (l *loader) check(key Key, n *node, dotted, text string) (string, bool) {
	bad := func(want string) (string, bool) {
		shown := ""
		if !key.Secret && n.kind == kindScalar {
			shown = strconv.Quote(text) + " is not "
		} else {
			shown = "is not "
		}
		l.problem(n.source, dotted, "%s%s", shown, want)
		return "", false
	}
	if n.kind == kindList {
		l.problem(n.source, dotted, "is a list, not a single value")
		return "", false
	}
	if n.kind == kindMap && text == "" {
		return "", false // reported by reference
	}
	if strings.ContainsRune(text, 0) {
		return bad("a text without NUL bytes")
	}
	if len(key.OneOf) > 0 && !slices.Contains(key.OneOf, text) {
		return bad("one of " + strings.Join(key.OneOf, ", ") + walimpls.Suggest(text, key.OneOf))
	}
	switch key.Type {
	case TypeBool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return bad("true or false")
		}
		return strconv.FormatBool(b), true
	case TypeDuration:
		d, err := time.ParseDuration(text)
		switch {
		case err == nil && d == 0 && key.Default == "0s":
		case err != nil || d <= 0:
			return bad("a duration above zero such as 10s")
		}
	case TypeBytes:
		if n, ok := byteSize(text); !ok || n <= 0 {
			return bad("a size above zero such as 64MiB")
		}
	case TypeInt:
		if n, err := strconv.Atoi(text); err != nil || n <= 0 || n > maxInt {
			return bad("a number above zero")
		}
	case TypeAddress:
		if !validAddress(text) && (text != "" || key.Default != "") {
			return bad("an address such as 127.0.0.1:7700")
		}
	case TypeSHA256:
		b, err := hex.DecodeString(text)
		if text != "" && (err != nil || len(b) != 32) {
			return bad("a SHA-256 checksum: 64 hexadecimal digits")
		}
		return strings.ToLower(text), true
	case TypePath:
		if text == "" && key.Default != "" {
			return bad("a path")
		}
	}
	if key.Name == "plugins.<name>.backend" && !backendName.MatchString(text) {
		return bad("a backend's name such as rmq (lower-case letters, digits, '_' and '-')")
	}
	return text, true
}

func validAddress(text string) bool {
	_, port, err := net.SplitHostPort(text)
	if err != nil {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}

const maxInt = 1 << 20

var byteUnits = []struct {
	suffix string
	factor int64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"B", 1}, {"", 1}}

// byteSize reads a size such as 64MiB; one without a unit is in bytes.
func byteSize(text string) (int64, bool) {
	for _, u := range byteUnits {
		digits, ok := strings.CutSuffix(text, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
		return n * u.factor, err == nil && n < math.MaxInt64/u.factor
	}
	return 0, false
}

// size reads a checked size; 0 for one that was wrong.
func size(text string) int {
	n, _ := byteSize(text)
	return int(n)
}

// duration reads a checked duration; 0 for one that was wrong.
func duration(text string) time.Duration { d, _ := time.ParseDuration(text); return d }

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func (l *loader) pluginEnv(cfg *Config, n *node, path []string) map[string]string {
	env := map[string]string{}
	if n == nil || n.kind != kindMap {
		return env
	}
	for _, name := range n.names() {
		if !envName.MatchString(name) {
			l.problem(n.fields[name].source, strings.Join(path, "."), "%q is not the name of an environment variable", name)
			continue
		}
		if n.fields[name].kind == kindNull {
			continue
		}
		wrapped := wrap(path, n)
		env[name] = l.scalar(cfg, wrapped, append(path[:len(path):len(path)], name))
	}
	return env
}

// secretName and secretValue tell literals in a plugin's configuration that
// are not printed. The plugin knows which of its keys are secret, the host does
// not before it has started it, so it is careful.
var (
	secretName  = regexp.MustCompile(`(?i)pass|secret|token|credential|private|api_?key|access_?key`)
	secretValue = regexp.MustCompile(`://[^/@\s]*:[^/@\s]*@`)
)

func (l *loader) pluginConfig(cfg *Config, n *node, path []string) walimpls.Config {
	config := walimpls.Config{}
	if n == nil || n.kind != kindMap {
		return config
	}
	for _, name := range n.names() {
		field := n.fields[name]
		dotted := strings.Join(append(path[:len(path):len(path)], name), ".")
		if field.kind == kindNull {
			continue
		}
		value, shown, ok := l.value(field, dotted)
		if !ok {
			continue
		}
		config[name] = value
		key, _, _ := lookup(append(path[:len(path):len(path)], name))
		secret := field.kind == kindMap || secretName.MatchString(name) || secretValue.MatchString(shown)
		if secret && field.kind != kindMap {
			shown = Hidden
		}
		cfg.entries = append(cfg.entries, Entry{
			Key: dotted, Type: key.Type, Value: shown, Default: key.DefaultDoc, Source: field.source, Secret: secret, Doc: key.Doc,
		})
	}
	return config
}

// value reads what a plugin's configuration may hold: a scalar, a list of
// scalars, or a secret's reference.
func (l *loader) value(n *node, dotted string) (value any, shown string, ok bool) {
	switch n.kind {
	case kindScalar:
		return n.native(), n.text, true
	case kindMap:
		text, shown := l.reference(n, dotted)
		return text, shown, text != ""
	}
	items := make([]any, 0, len(n.list))
	texts := make([]string, 0, len(n.list))
	for _, item := range n.list {
		if item.kind != kindScalar {
			l.problem(item.source, dotted, "a list holds single values here, not %s", item.kind)
			return nil, "", false
		}
		items, texts = append(items, item.text), append(texts, item.text)
	}
	return items, "[" + strings.Join(texts, ", ") + "]", true
}
