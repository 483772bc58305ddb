package faultbackend

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/walrig/walrig/sdk/walimpls"
)

func TestRulesHaveOneCanonicalForm(t *testing.T) {
	for in, want := range map[string]string{
		"append block until released":                       "append block",
		"append block":                                      "append block",
		"open block-ack until released term=3":              "open block-ack term=3",
		"append fail-before-write not_stored 1/50":          "append fail-before-write not_stored every=50",
		"append fail-before-write":                          "append fail-before-write not_stored",
		"append fail-before-write unknown":                  "append fail-before-write unknown",
		"open fail-before-write":                            "open fail-before-write",
		"append fail-after-write unknown count=3 after=10":  "append fail-after-write unknown after=10 count=3",
		"drop fail-after-write":                             "drop fail-after-write",
		"append delay-ack 20ms":                             "append delay-ack 20ms",
		"any delay 1s":                                      "any delay 1s",
		"append lose-connection":                            "append lose-connection after",
		"append lose-connection half":                       "append lose-connection half",
		`open error unavailable "text" count=5`:             `open error unavailable "text" count=5`,
		"append permanent unrecoverable":                    `append permanent "unrecoverable"`,
		"append permanent":                                  "append permanent",
		"append permanent count=2":                          "append permanent count=2",
		"close hang 30s":                                    "close hang 30s",
		"close hang":                                        "close hang",
		"append exit 3 after=100":                           "append exit 3 before after=100",
		"append exit":                                       "append exit 1 before",
		"append exit torn":                                  "append exit 1 torn",
		"read error corrupt channel=orders":                 "read error corrupt channel=orders",
		"append late":                                       "append late 50ms",
		"append late 2s prob=0.25 seed=7 per=call name=two": "append late 2s prob=0.25 seed=7 per=call name=two",
		"append block incarnation=2 per=record":             "append block incarnation=2",
		"\tappend  block # until the test says so":          "append block",
		`next error corrupt "a # b; c"`:                     `next error corrupt "a # b; c"`,
	} {
		rules, err := parseRules(in)
		if err != nil || len(rules) != 1 {
			t.Errorf("%q: %d rules, %v", in, len(rules), err)
			continue
		}
		if got := rules[0].String(); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestASetOfRulesHasLinesAndSemicolons(t *testing.T) {
	rules, err := parseRules("# nothing\n\nappend block;open error corrupt;\n ; close hang 1s\r\n")
	if err != nil || len(rules) != 3 {
		t.Fatalf("%d rules, %v", len(rules), err)
	}
}

func TestBadRulesNameLineAndToken(t *testing.T) {
	for in, want := range map[string][]string{
		"appendd block":                         {`"appendd"`, `did you mean "append"`},
		"append":                                {`"append"`, "an action must follow"},
		"append blok":                           {`"blok"`, `did you mean "block"`},
		"append block until":                    {`"until"`, "released"},
		"append block until noon":               {`"noon"`, "released"},
		"append delay":                          {`"delay"`, "duration"},
		"append delay soon":                     {`"soon"`, "duration"},
		"append delay -1s":                      {`"-1s"`, "duration"},
		"read late":                             {`"late"`, "not for read"},
		"read fail-after-write":                 {`"fail-after-write"`, "not for read"},
		"any block-ack":                         {`"block-ack"`, "not for any"},
		"append fail-after-write not_stored":    {`"not_stored"`, "does not take"},
		"append fail-before-write maybe":        {`"maybe"`, "does not take"},
		"open fail-before-write unknown":        {`"unknown"`, "does not take"},
		"open error":                            {`"error"`, "error code"},
		"open error bad_luck":                   {`"bad_luck"`, "error code"},
		`open error corrupt "x`:                 {"does not end"},
		"append exit 256":                       {`"256"`, "255"},
		"append exit 3 sideways":                {`"sideways"`, "does not take"},
		"append block count=0":                  {`"count=0"`, "from 1"},
		"append block term=x":                   {`"term=x"`, "from 1"},
		"append block count=1 count=2":          {`"count=2"`, "twice"},
		"append block every=2 1/2":              {`"1/2"`, "twice"},
		"append block 2/3":                      {`"2/3"`, "does not take"},
		"append block prob=1.5":                 {`"prob=1.5"`, "probability"},
		"append block prob=NaN":                 {`"prob=NaN"`, "probability"},
		"append block prob=0.5 seed=-1":         {`"seed=-1"`, "seed"},
		"append block seed=1":                   {`"seed"`, "prob"},
		"append block channel=[":                {`"channel=["`, "pattern"},
		"open block per=call":                   {`"per=call"`, "append rules"},
		"append block name=a/b":                 {`"name=a/b"`, "name"},
		"append block cuont=1":                  {`"cuont=1"`, `did you mean "count"`},
		"append block\nappend block\nread nope": {"line 3", `"nope"`},
		"read nope\nopen nope":                  {"line 1", "line 2"},
	} {
		err := CheckRules(in)
		wantErr(t, err, walimpls.ErrInvalidArgument)
		for _, part := range append(want, "line ") {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q: %v does not say %s", in, err, part)
			}
		}
	}
}

func TestTheDocumentedRulesAreRules(t *testing.T) {
	for file, pattern := range map[string]string{
		"README.md": "(?m)^\\| `([^`]+)` \\|",
		"doc.go":    `(?m)^//\t((?:append|open|read|close) [^|\n]+)$`,
	} {
		text, err := os.ReadFile(file)
		check(t, err)
		found := regexp.MustCompile(pattern).FindAllStringSubmatch(string(text), -1)
		if len(found) < 8 {
			t.Errorf("%s: found %d rules", file, len(found))
		}
		for _, m := range found {
			if err := CheckRules(m[1]); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
}

func FuzzParseRules(f *testing.F) {
	f.Add("append fail-before-write not_stored 1/50 # x")
	f.Add(`open error unavailable "a\n" count=5; close hang 30s`)
	f.Add("append exit 3 torn after=100\nany delay 1ms prob=0.5 seed=3 name=a")
	f.Fuzz(func(t *testing.T, text string) {
		rules, err := parseRules(text)
		if err != nil {
			return
		}
		var lines []string
		for _, r := range rules {
			lines = append(lines, r.String())
		}
		again, err := parseRules(strings.Join(lines, "\n"))
		if err != nil || len(again) != len(rules) {
			t.Fatalf("the canonical form of %q is not readable: %q: %v", text, lines, err)
		}
		for i := range again {
			if again[i] != rules[i] {
				t.Fatalf("%q became %+v, was %+v", lines[i], again[i], rules[i])
			}
		}
	})
}
