package faultbackend

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/walrig/walrig/sdk/walimpls"
)

// CheckRules returns an ErrInvalidArgument that names line and token of every
// rule that cannot be read, or nil. The grammar is in the package comment.
func CheckRules(text string) error {
	_, err := parseRules(text)
	return err
}

// parseRules reads a whole set. All problems are reported at once.
func parseRules(text string) ([]rule, error) {
	var rules []rule
	var problems []string
	for i, line := range strings.Split(text, "\n") {
		statements, err := tokenize(line)
		for _, tokens := range statements {
			if err != nil {
				break
			}
			var r rule
			if r, err = parseRule(tokens); err == nil {
				rules = append(rules, r)
			}
		}
		if err != nil {
			problems = append(problems, fmt.Sprintf("line %d: %v", i+1, err))
		}
	}
	if len(problems) > 0 {
		return nil, walimpls.Errorf(walimpls.CodeInvalidArgument, "", "fault rules: %s", strings.Join(problems, "; "))
	}
	return rules, nil
}

// token is a word, or a quoted text without its quotes.
type token struct {
	text   string
	quoted bool
}

// tokenError is a problem with one token.
func tokenError(t token, format string, args ...any) error {
	return fmt.Errorf("token %q: %s", t.text, fmt.Sprintf(format, args...))
}

// tokenize cuts a line into statements at ';' and those into tokens at blanks.
// '#' at the start of a token begins a comment. Both mean nothing inside quotes.
func tokenize(line string) ([][]token, error) {
	var statements [][]token
	var tokens []token
	flush := func() {
		if len(tokens) > 0 {
			statements = append(statements, tokens)
			tokens = nil
		}
	}
	for rest := line; ; {
		rest = strings.TrimLeft(rest, " \t\r")
		switch {
		case rest == "" || rest[0] == '#':
			flush()
			return statements, nil
		case rest[0] == ';':
			flush()
			rest = rest[1:]
		case rest[0] == '"':
			quoted, err := strconv.QuotedPrefix(rest)
			if err != nil {
				return nil, tokenError(token{text: rest}, "the quoted text does not end")
			}
			text, err := strconv.Unquote(quoted)
			if err != nil {
				return nil, tokenError(token{text: quoted}, "not a quoted text")
			}
			tokens = append(tokens, token{text: text, quoted: true})
			rest = rest[len(quoted):]
		default:
			end := strings.IndexAny(rest, " \t\r;\"")
			if end < 0 {
				end = len(rest)
			}
			tokens = append(tokens, token{text: rest[:end]})
			rest = rest[end:]
		}
	}
}
