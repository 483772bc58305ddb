package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/walrig/walrig/sdk/walimpls"
)

// Input is what a configuration is made of. The zero value is the defaults.
type Input struct {
	// File is the path of the YAML file, "" for none. A file that is named must exist.
	File string
	// Env is the environment as "NAME=value" (os.Environ).
	Env []string
	// Set holds the --set flags as "a.b=c", in their order.
	Set []string
	// Flags holds the dedicated flags that were given: key name to value.
	Flags map[string]string
	// Backend is --backend: the backend of the default plugin, "" if not given.
	Backend string
}

const (
	envPrefix = "WALRIG_"
	// maxFileBytes bounds the file and each secret's file.
	maxFileBytes = 1 << 20
)

// reservedEnv are variables that are not keys; the last two are those of the
// plugin protocol. A trailing * stands for any rest.
var reservedEnv = []string{"WALRIG_ADDR", "WALRIG_TOKEN", "WALRIG_TEST_*", "WALRIG_REQUIRE_*", "WALRIG_PLUGIN_DEPTH", "WALRIG_PLUGIN_COOKIE"}

// Load reads and checks everything. The error is an *Error with all problems.
func Load(in Input) (*Config, error) {
	l := &loader{env: envMap(in.Env)}
	root := newMap(Source{Kind: SourceDefault, Text: "default"})
	for _, layer := range []*node{l.file(in.File), l.environment(), l.sets(in.Set), l.flags(in.Flags)} {
		if layer != nil {
			root = overlay(root, layer, nil)
		}
	}
	if in.Backend != "" {
		l.backend(root, in.Backend)
	}
	cfg := l.build(root)
	if len(l.problems) > 0 {
		return nil, &Error{Problems: l.problems}
	}
	return cfg, nil
}

// loader collects problems while the parts are read.
type loader struct {
	env      map[string]string
	problems []Problem
}

func (l *loader) problem(source Source, key, format string, args ...any) {
	l.problems = append(l.problems, Problem{Source: source, Key: key, Message: fmt.Sprintf(format, args...)})
}

func envMap(env []string) map[string]string {
	m := make(map[string]string, len(env))
	for _, e := range env {
		if name, value, ok := strings.Cut(e, "="); ok {
			m[name] = value
		}
	}
	return m
}

func (l *loader) file(path string) *node {
	if path == "" {
		return nil
	}
	whole := Source{Kind: SourceFile, Text: path}
	data, err := readBounded(path)
	if err != nil {
		l.problem(whole, "", "the configuration file cannot be read: %v", cause(err))
		return nil
	}
	at := func(line int) Source {
		return Source{Kind: SourceFile, Text: path + ":" + strconv.Itoa(line)}
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	if err := decoder.Decode(&doc); errors.Is(err, io.EOF) {
		return nil
	} else if err != nil {
		l.syntax(err, path)
		return nil
	}
	if err := decoder.Decode(&second); err == nil {
		l.problem(at(second.Line), "", "a second document in one file is not supported")
		return nil
	} else if !errors.Is(err, io.EOF) {
		l.syntax(err, path)
		return nil
	}
	n, problems := fromYAML(doc.Content[0], at)
	l.problems = append(l.problems, problems...)
	switch n.kind {
	case kindNull:
		return nil
	case kindMap:
		return n
	}
	l.problem(n.source, "", "the file must be a map of keys, not %s", n.kind)
	return nil
}

var yamlLine = regexp.MustCompile(`^(?:yaml: )?(?:line (\d+): )?(?s)(.*)$`)

// syntax reports a parse error of the YAML library with its line.
func (l *loader) syntax(err error, path string) {
	m := yamlLine.FindStringSubmatch(err.Error())
	if m[1] != "" {
		path += ":" + m[1]
	}
	l.problem(Source{Kind: SourceFile, Text: path}, "", "not valid YAML: %s", strings.ReplaceAll(m[2], "\n", " "))
}

func (l *loader) environment() *node {
	var names []string
	byEnv := map[string]Key{}
	for _, k := range keyTable {
		if e := k.Env(); e != "" {
			names, byEnv[e] = append(names, e), k
		}
	}
	root := newMap(Source{})
	var given []string
	for name := range l.env {
		if strings.HasPrefix(name, envPrefix) && !reserved(name) {
			given = append(given, name)
		}
	}
	slices.Sort(given)
	for _, name := range given {
		source := Source{Kind: SourceEnv, Text: name}
		k, known := byEnv[name]
		if !known {
			path := strings.Split(strings.ToLower(strings.TrimPrefix(name, envPrefix)), "__")
			if _, leaf, inner := lookup(path); leaf || inner {
				l.problem(source, "", "%s cannot be set by a variable: use the file, or --set %s=…", path[0], strings.Join(path, "."))
				continue
			}
			l.problem(source, "", "no key has this variable%s", walimpls.Suggest(name, names))
			continue
		}
		root = overlay(root, wrap(strings.Split(k.Name, "."), newScalar(source, l.env[name])), nil)
	}
	return root
}

func reserved(name string) bool {
	for _, r := range reservedEnv {
		if prefix, ok := strings.CutSuffix(r, "*"); name == r || ok && strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

func (l *loader) sets(sets []string) *node {
	root := newMap(Source{})
	for _, s := range sets {
		dotted, value, ok := strings.Cut(s, "=")
		source := Source{Kind: SourceSet, Text: "--set " + dotted}
		if !ok || dotted == "" {
			l.problem(Source{Kind: SourceSet, Text: "--set"}, "", "want a.b=c, such as --set log.level=debug")
			continue
		}
		n := l.setValue(source, value)
		if n == nil {
			continue
		}
		root = overlay(root, wrap(splitPath(dotted), n), nil)
	}
	return root
}

// setValue reads the value of a --set: YAML if it starts like a list, a map or
// a quoted text, else the text as it stands.
func (l *loader) setValue(source Source, value string) *node {
	if value == "" || !strings.ContainsRune(`[{"'`, rune(value[0])) {
		return newScalar(source, value)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(value), &doc); err != nil || len(doc.Content) == 0 {
		// The library's text may quote the value, which may be a secret.
		l.problem(source, "", "the value starts like a YAML list, map or quoted text, but is not one")
		return nil
	}
	n, problems := fromYAML(doc.Content[0], func(int) Source { return source })
	l.problems = append(l.problems, problems...)
	return n
}

func (l *loader) flags(flags map[string]string) *node {
	root := newMap(Source{})
	for _, k := range keyTable {
		if value, given := flags[k.Name]; given && k.Flag() != "" {
			source := Source{Kind: SourceFlag, Text: "--" + k.Flag()}
			root = overlay(root, wrap(strings.Split(k.Name, "."), newScalar(source, value)), nil)
		}
	}
	return root
}

// backend applies --backend. The default plugin is the one that is named and
// gets this backend; else the first plugin that has it; else `local` gets it.
func (l *loader) backend(root *node, backend string) {
	source := Source{Kind: SourceFlag, Text: "--backend"}
	name := impliedPlugin
	if n := root.at("default_plugin"); n != nil && n.kind == kindScalar && n.text != "" {
		name = n.text
	} else {
		if has := pluginOf(root.at("plugins"), backend); has != "" {
			name = has
		}
		overlay(root, wrap([]string{"default_plugin"}, newScalar(source, name)), nil)
	}
	overlay(root, wrap([]string{"plugins", name, "backend"}, newScalar(source, backend)), nil)
}

// pluginOf returns the first plugin by name that is written with the backend.
func pluginOf(plugins *node, backend string) string {
	if plugins == nil || plugins.kind != kindMap {
		return ""
	}
	for _, name := range plugins.names() {
		if n := plugins.at(name, "backend"); n != nil && n.kind == kindScalar && n.text == backend {
			return name
		}
	}
	return ""
}

// readBounded reads a small regular file (or pipe) and refuses a large one.
func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFileBytes {
		return nil, fmt.Errorf("larger than %d bytes", maxFileBytes)
	}
	return data, nil
}

// cause strips operation and path from a file error: the path is shown already.
func cause(err error) error {
	if e, ok := errors.AsType[*os.PathError](err); ok {
		return e.Err
	}
	return err
}

// ParseValues reads a plugin's configuration from "key=value" flags alone,
// secrets' references included. The error is an *Error with all problems.
func ParseValues(sets, env []string) (walimpls.Config, error) {
	l := &loader{env: envMap(env)}
	values := walimpls.Config{}
	for _, s := range sets {
		key, text, ok := strings.Cut(s, "=")
		if !ok || key == "" {
			l.problem(Source{Kind: SourceSet, Text: "--set"}, "", "want key=value, such as --set dir=/tmp/x")
			continue
		}
		n := l.setValue(Source{Kind: SourceSet, Text: "--set " + key}, text)
		if n == nil || n.kind == kindNull {
			continue
		}
		if v, _, ok := l.value(n, key); ok {
			values[key] = v
		}
	}
	if len(l.problems) > 0 {
		return nil, &Error{Problems: l.problems}
	}
	return values, nil
}
