package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// node is a value as it was written, with where: a scalar, a list, or a map.
// Scalars keep their text, so that a checksum of digits or a "1e3" stays what
// the user wrote until the key's type is known.
type node struct {
	kind   nodeKind
	source Source
	text   string
	// plain says that the text was not quoted, so that it may be a number.
	plain  bool
	list   []*node
	fields map[string]*node
}

type nodeKind int

const (
	kindScalar nodeKind = iota
	kindNull
	kindList
	kindMap
)

func (k nodeKind) String() string {
	return [...]string{"a single value", "nothing", "a list", "a map"}[k]
}

func newMap(source Source) *node {
	return &node{kind: kindMap, source: source, fields: map[string]*node{}}
}

func newScalar(source Source, text string) *node {
	return &node{source: source, text: text, plain: true}
}

// names returns the fields of a map in a fixed order.
func (n *node) names() []string { return slices.Sorted(maps.Keys(n.fields)) }

// maxYAMLDepth bounds nesting, and with it aliases that contain themselves;
// maxYAMLNodes bounds what aliases of aliases can grow to.
const (
	maxYAMLDepth = 16
	maxYAMLNodes = 100_000
)

// converter turns a parsed document into nodes. at names the place of a line.
type converter struct {
	at       func(line int) Source
	nodes    int
	problems []Problem
}

func (c *converter) problem(line int, key, format string, args ...any) {
	c.problems = append(c.problems, Problem{Source: c.at(line), Key: key, Message: fmt.Sprintf(format, args...)})
}

// fromYAML converts a parsed document.
func fromYAML(y *yaml.Node, at func(line int) Source) (*node, []Problem) {
	c := &converter{at: at}
	n := c.convert(y, 0)
	if c.nodes > maxYAMLNodes {
		c.problem(y.Line, "", "more than %d values", maxYAMLNodes)
	}
	return n, c.problems
}

func (c *converter) convert(y *yaml.Node, depth int) *node {
	if depth > maxYAMLDepth {
		c.problem(y.Line, "", "nested deeper than %d levels", maxYAMLDepth)
		return newMap(c.at(y.Line))
	}
	if c.nodes++; c.nodes > maxYAMLNodes {
		return &node{kind: kindNull, source: c.at(y.Line)}
	}
	switch y.Kind {
	case yaml.AliasNode:
		return c.convert(y.Alias, depth+1)
	case yaml.SequenceNode:
		n := &node{kind: kindList, source: c.at(y.Line)}
		for _, item := range y.Content {
			n.list = append(n.list, c.convert(item, depth+1))
		}
		return n
	case yaml.MappingNode:
		return c.convertMap(y, depth)
	}
	n := newScalar(c.at(y.Line), y.Value)
	n.plain = y.Style == 0
	if y.ShortTag() == "!!null" && n.plain {
		n.kind = kindNull
	}
	return n
}

func (c *converter) convertMap(y *yaml.Node, depth int) *node {
	n := newMap(c.at(y.Line))
	for i := 0; i+1 < len(y.Content); i += 2 {
		k, v := y.Content[i], y.Content[i+1]
		if k.Kind != yaml.ScalarNode || k.ShortTag() == "!!merge" {
			c.problem(k.Line, "", "a key must be plain text; merge keys are not supported")
			continue
		}
		if first, twice := n.fields[k.Value]; twice {
			c.problem(k.Line, k.Value, "written twice, first at %s", first.source.Text)
			continue
		}
		field := c.convert(v, depth+1)
		// What is wrong with a key is best shown where the key stands.
		field.source = c.at(k.Line)
		n.fields[k.Value] = field
	}
	return n
}

// overlay puts over on top of base and returns the result. Maps are merged
// above the table's keys; at a key, and for everything else, over replaces base.
func overlay(base, over *node, path []string) *node {
	if over.kind == kindNull {
		if base == nil {
			return over
		}
		return base
	}
	_, leaf, _ := lookup(path)
	if base == nil || base.kind != kindMap || over.kind != kindMap || leaf {
		return over
	}
	for _, name := range over.names() {
		base.fields[name] = overlay(base.fields[name], over.fields[name], append(path[:len(path):len(path)], name))
	}
	return base
}

// wrap returns a tree that holds n at the path.
func wrap(path []string, n *node) *node {
	for i := len(path) - 1; i >= 0; i-- {
		m := newMap(n.source)
		m.fields[path[i]] = n
		n = m
	}
	return n
}

// at returns what stands at the path, nil for nothing.
func (n *node) at(path ...string) *node {
	for _, p := range path {
		if n == nil || n.kind != kindMap {
			return nil
		}
		n = n.fields[p]
	}
	if n == nil || n.kind == kindNull {
		return nil
	}
	return n
}

// native returns a plain scalar as the number or bool that it is written as,
// if that loses nothing, else as text.
func (n *node) native() any {
	if !n.plain {
		return n.text
	}
	if n.text == "true" || n.text == "false" {
		return n.text == "true"
	}
	if v, err := strconv.ParseInt(n.text, 10, 64); err == nil && strconv.FormatInt(v, 10) == n.text {
		return v
	}
	if v, err := strconv.ParseFloat(n.text, 64); err == nil && strconv.FormatFloat(v, 'f', -1, 64) == n.text {
		return v
	}
	return n.text
}
