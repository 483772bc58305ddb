package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/walrig/walrig/conformance/faultbackend"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// forgetful is a backend that loses every property; it claims what bare says.
type forgetful struct {
	*faultbackend.Builder
	lose, bare bool
}

func (f forgetful) Describe() walimpls.Description {
	d := f.Builder.Describe()
	if f.bare {
		d.Capabilities = walimpls.Capabilities{Fencing: walimpls.FencingNone, Durability: walimpls.DurabilityMemory, Truncation: walimpls.TruncationNone}
	}
	return d
}

func (f forgetful) Build(ctx context.Context, cfg walimpls.Config, _ *zap.Logger) (walimpls.Opener, error) {
	o, err := f.Builder.Build(ctx, cfg, nil)
	return forgetfulOpener{o, f}, err
}

type forgetfulOpener struct {
	walimpls.Opener
	f forgetful
}

func (o forgetfulOpener) Open(ctx context.Context, opt walimpls.OpenOptions) (walimpls.WAL, error) {
	w, err := o.Opener.Open(ctx, opt)
	if err != nil {
		return nil, err
	}
	return forgetfulWAL{w, o.f}, nil
}

type forgetfulWAL struct {
	walimpls.WAL
	f forgetful
}

func (w forgetfulWAL) Append(ctx context.Context, batch []message.Message) ([]message.ID, error) {
	batch = slices.Clone(batch)
	for i := range batch {
		if w.f.lose && string(batch[i].Payload) == "p" { // which spares the checks of other clauses
			batch[i].Properties = nil
		}
	}
	return w.WAL.Append(ctx, batch)
}

func runOn(t *testing.T, b walimpls.Builder, opt Options) Report {
	t.Helper()
	r, err := Run(t.Context(), InProcess(b, walimpls.Config{}), opt)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func broken() forgetful { return forgetful{Builder: faultbackend.NewBuilder(), lose: true} }
func whole() forgetful  { return forgetful{Builder: faultbackend.NewBuilder()} }

const propertyClause = "WAL-APP-004"

func TestFailureTellsEverythingToRepeatIt(t *testing.T) {
	r := runOn(t, broken(), Options{Run: propertyClause, Seed: 42})
	if r.OK() || !slices.Equal(r.Failed(), []string{propertyClause}) {
		t.Fatalf("result %s, failed %v", r.Result, r.Failed())
	}
	c, _ := r.Clause(propertyClause)
	f := c.Checks[0].Failure
	if !strings.Contains(f.Message, "properties that differ") || f.Seed != 42 || len(f.Trace) < 3 || !strings.HasPrefix(f.Trace[0], "#1 ") {
		t.Errorf("failure %+v", f)
	}
	for _, want := range []string{"--seed 42", "--run '^WAL-APP-004/properties$'"} {
		if !strings.Contains(f.Command, want) {
			t.Errorf("command %q lacks %q", f.Command, want)
		}
	}
	var table bytes.Buffer
	if err := r.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"FAIL WAL-APP-004/properties", c.Text, "#1 ", "--seed 42", "more were not selected", "result: fail"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("the table lacks %q", want)
		}
	}
}

func TestRunOfNothingFails(t *testing.T) {
	r := runOn(t, whole(), Options{Run: "^no such check$"})
	if r.OK() || !strings.Contains(strings.Join(r.Reasons, " "), "nothing was executed") {
		t.Errorf("result %s, reasons %v", r.Result, r.Reasons)
	}
	if r = runOn(t, whole(), Options{Levels: []Level{LevelDurable}}); r.OK() {
		t.Error("a level that is asked for and not claimed is no failure")
	}
}

func TestBackendWithoutCapabilitiesIsIncomplete(t *testing.T) {
	bare := forgetful{Builder: faultbackend.NewBuilder(), bare: true}
	r := runOn(t, bare, Options{Run: "WAL-APP-00|WAL-FENCE|WAL-DROP|WAL-AUD-00[123]"})
	if r.Result == ResultPass {
		t.Errorf("result %s", r.Result)
	}
	c, _ := r.Clause("WAL-FENCE-001")
	if c.Verdict != NotClaimed {
		t.Errorf("a clause of fencing is %q for a backend that claims none", c.Verdict)
	}
	if !slices.ContainsFunc(r.Warnings, func(w string) bool { return strings.Contains(w, "Truncate works and is not claimed") }) {
		t.Errorf("what works and is not claimed earns no warning: %v", r.Warnings)
	}
	for _, l := range r.Levels {
		if l.State == Reached && l.Level != LevelCore {
			t.Errorf("level %s is reached without a claim", l.Level)
		}
	}
	if len(r.Left) == 0 {
		t.Error("channels that cannot be dropped are not listed")
	}
}

func TestWaivers(t *testing.T) {
	now := func() time.Time { return time.Date(2026, 6, 30, 23, 0, 0, 0, time.UTC) }
	waiver := func(clause, expires string) []Waiver {
		return []Waiver{{Clause: clause, Reason: "known", Owner: "somebody", Expires: expires}}
	}
	r := runOn(t, broken(), Options{Run: propertyClause, Waivers: waiver(propertyClause, "2026-06-30"), Now: now})
	if c, _ := r.Clause(propertyClause); c.Verdict != Waived || !r.OK() {
		t.Errorf("on its last day a waiver holds: %s, %s %v", c.Verdict, r.Result, r.Reasons)
	}
	for _, l := range r.Levels {
		if l.Level == LevelCore && l.State != NotReached {
			t.Errorf("a level with a waived clause is %s", l.State)
		}
	}
	if r = runOn(t, broken(), Options{Run: propertyClause, Waivers: waiver(propertyClause, "2026-06-29"), Now: now}); r.OK() {
		t.Error("an expired waiver does not fail the run")
	}
	if r = runOn(t, whole(), Options{Run: propertyClause, Waivers: waiver(propertyClause, "2027-01-01"), Now: now}); r.OK() {
		t.Error("a waiver of a clause that passes does not fail the run")
	}
	own := &Report{Backend: BackendInfo{Name: "rmq"}}
	if own.waive(Options{Waivers: waiver(propertyClause, "2027-01-01"), Now: now}) == nil {
		t.Error("rmq may have a waiver")
	}
	for _, bad := range []string{
		"- {clause: WAL-NO-001, reason: r, owner: o, expires: 2026-01-01}",
		"- {clause: WAL-APP-004, reason: r, owner: o, expires: soon}",
		"- {clause: WAL-APP-004, owner: o, expires: 2026-01-01}",
		"- {clause: WAL-APP-004, reason: r, expires: 2026-01-01}",
		"- {clause: WAL-APP-004, reason: r, owner: o, expires: 2026-01-01, forever: true}",
	} {
		if _, err := ReadWaivers(strings.NewReader(bad)); !errors.Is(err, walimpls.ErrInvalidArgument) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if ws, err := ReadWaivers(strings.NewReader("- {clause: WAL-APP-004, reason: r, owner: o, expires: 2026-01-01}\n")); err != nil || len(ws) != 1 {
		t.Errorf("a good file: %v %v", ws, err)
	}
}

func TestReportHasItsSchemaAndRoundTrips(t *testing.T) {
	for _, b := range []forgetful{broken(), whole()} {
		r := runOn(t, b, Options{Run: "WAL-APP-00"})
		var text bytes.Buffer
		if err := r.WriteJSON(&text); err != nil {
			t.Fatal(err)
		}
		var schema, value any
		if err := errors.Join(json.Unmarshal([]byte(RenderSchema()), &schema), json.Unmarshal(text.Bytes(), &value)); err != nil {
			t.Fatal(err)
		}
		for _, p := range violations(schema.(map[string]any), value, "report") {
			t.Error(p)
		}
		back, err := ReadJSON(&text)
		if err != nil || len(Diff(r, back).Changes) != 0 {
			t.Errorf("the report does not round-trip: %v", err)
		}
	}
}

// violations checks a value against as much of JSON schema as RenderSchema uses.
func violations(schema map[string]any, v any, at string) (out []string) {
	if any2, ok := schema["anyOf"].([]any); ok {
		var first []string
		for _, s := range any2 {
			if first = violations(s.(map[string]any), v, at); len(first) == 0 {
				return nil
			}
		}
		return first
	}
	kind := ""
	switch x := v.(type) {
	case nil:
		kind = "null"
	case bool:
		kind = "boolean"
	case string:
		kind = "string"
		if enum, ok := schema["enum"].([]any); ok && !slices.Contains(enum, any(x)) {
			out = append(out, at+": "+x+" is not allowed")
		}
	case float64:
		kind = "integer"
	case []any:
		kind = "array"
		for _, e := range x {
			out = append(out, violations(schema["items"].(map[string]any), e, at+"[]")...)
		}
	case map[string]any:
		kind = "object"
		properties, _ := schema["properties"].(map[string]any)
		for k, e := range x {
			s, ok := properties[k].(map[string]any)
			if !ok {
				s, ok = schema["additionalProperties"].(map[string]any)
			}
			if !ok {
				out = append(out, at+"."+k+" is not in the schema")
				continue
			}
			out = append(out, violations(s, e, at+"."+k)...)
		}
		required, _ := schema["required"].([]any)
		for _, k := range required {
			if _, ok := x[k.(string)]; !ok {
				out = append(out, at+"."+k.(string)+" is missing")
			}
		}
	}
	if kind != schema["type"] {
		out = append(out, at+" is "+kind)
	}
	return out
}

func TestDiffNamesWhatBecameWorse(t *testing.T) {
	good, bad := runOn(t, whole(), Options{Run: "WAL-APP-00"}), runOn(t, broken(), Options{Run: "WAL-APP-00"})
	d := Diff(good, bad)
	if len(d.Changes) != 1 || d.Changes[0] != (Change{Clause: propertyClause, Before: Pass, After: Fail, Worse: true}) || !d.Worse() {
		t.Errorf("%+v", d)
	}
	if back := Diff(bad, good); back.Worse() || len(back.Changes) != 1 {
		t.Errorf("%+v", back)
	}
	var text bytes.Buffer
	if err := d.Write(&text); err != nil || !strings.Contains(text.String(), "! WAL-APP-004: pass → fail") {
		t.Errorf("%v %q", err, text.String())
	}
}

func TestJUnitAndPageAreWhole(t *testing.T) {
	r := runOn(t, broken(), Options{Run: "WAL-APP-00"})
	var junit, page bytes.Buffer
	if err := errors.Join(r.WriteJUnit(&junit), r.WriteHTML(&page)); err != nil {
		t.Fatal(err)
	}
	var suites junitSuites
	if err := xml.Unmarshal(junit.Bytes(), &suites); err != nil {
		t.Fatal(err)
	}
	if suites.Failures != 2 || suites.Tests != len(List())+1 || suites.Skipped == 0 {
		t.Errorf("%d tests, %d failures, %d skipped", suites.Tests, suites.Failures, suites.Skipped)
	}
	for _, want := range []string{"WAL-APP-004", "--seed", "#1 ", "</html>"} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	for _, outside := range []string{"src=", "href=\"http", "@import"} {
		if strings.Contains(page.String(), outside) {
			t.Errorf("the page needs something else: %s", outside)
		}
	}
}

func TestCheckRepeatedAloneDrawsTheSame(t *testing.T) {
	run := func() string {
		c, _ := runOn(t, broken(), Options{Run: "^WAL-APP-004/properties$", Seed: 99}).Clause(propertyClause)
		return c.Checks[0].Failure.Message
	}
	if a, b := run(), run(); a != b {
		t.Errorf("%q and %q", a, b)
	}
}

func TestListNamesEveryCheck(t *testing.T) {
	if n := len(List()); n != len(allChecks()) || n < 90 {
		t.Errorf("%d checks", n)
	}
	if _, err := Run(t.Context(), InProcess(whole(), nil), Options{Run: "("}); !errors.Is(err, walimpls.ErrInvalidArgument) {
		t.Errorf("a bad expression: %v", err)
	}
	if _, err := Run(t.Context(), InProcess(whole(), nil), Options{Levels: []Level{"Coer"}}); !errors.Is(err, walimpls.ErrInvalidArgument) || !strings.Contains(err.Error(), "Core") {
		t.Errorf("a bad level: %v", err)
	}
}
