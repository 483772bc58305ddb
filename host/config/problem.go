package config

import (
	"fmt"
	"strings"

	"github.com/walrig/walrig/sdk/walimpls"
)

// SourceKind says what kind of place a value was written in.
type SourceKind string

// The kinds, in rising precedence.
const (
	SourceDefault SourceKind = "default"
	SourceFile    SourceKind = "file"
	SourceEnv     SourceKind = "env"
	SourceSet     SourceKind = "set"
	SourceFlag    SourceKind = "flag"
)

// Source is where a value was written.
type Source struct {
	Kind SourceKind
	// Text names the place: "walrig.yaml:3", "WALRIG_LISTEN", "--set listen",
	// "--listen"; "default" for defaults.
	Text string
}

// Problem is one thing that is wrong.
type Problem struct {
	// Source is where it was written; Text is "" if nothing was written.
	Source Source
	// Key is the dotted path concerned, "" if none.
	Key string
	// Message says what is wrong with it and what is expected. It holds no secret.
	Message string
}

// String returns "source: key: message" without the parts that are not known.
func (p Problem) String() string {
	var parts []string
	if p.Source.Text != "" && p.Source.Kind != SourceDefault {
		parts = append(parts, p.Source.Text)
	}
	// A flag names its key itself.
	if p.Key != "" && p.Source.Kind != SourceFlag && p.Source.Text != "--set "+p.Key {
		parts = append(parts, p.Key)
	}
	return strings.Join(append(parts, p.Message), ": ")
}

// Error is everything that is wrong with a configuration. It is a
// walimpls.ErrConfig.
type Error struct {
	Problems []Problem
}

// Error returns all problems in one line.
func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	if len(lines) == 1 {
		return lines[0]
	}
	return fmt.Sprintf("%d problems in the configuration: %s", len(lines), strings.Join(lines, "; "))
}

// Unwrap makes the error an ErrConfig.
func (e *Error) Unwrap() error {
	err := walimpls.Errorf(walimpls.CodeConfig, "", "%s", e.Error())
	err.Hint = "`walrig config explain` shows every key, its value and where it comes from"
	return err
}
