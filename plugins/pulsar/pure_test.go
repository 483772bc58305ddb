package pulsar

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

func TestIDsOrderAsEntriesDo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		one := rapid.Custom(func(t *rapid.T) [3]int64 {
			return [3]int64{rapid.Int64Range(0, 1<<40).Draw(t, "ledger"), rapid.Int64Range(0, 1<<40).Draw(t, "entry"), rapid.Int64Range(0, maxRecords).Draw(t, "index")}
		})
		a, b := one.Draw(t, "a"), one.Draw(t, "b")
		x, y := entry{a[0], a[1]}.id(int(a[2])), entry{b[0], b[1]}.id(int(b[2]))
		if got, want := x.Compare(y), slices.Compare(a[:], b[:]); got != want {
			t.Fatalf("%v and %v compare as %d, want %d", a, b, got, want)
		}
		if x.IsZero() {
			return
		}
		e, i, ok := parseID(x)
		if !ok || e != (entry{a[0], a[1]}) || int64(i) != a[2] {
			t.Fatalf("%v comes back as %v %d %v", a, e, i, ok)
		}
	})
	if got, _ := idLayout.Format(entry{12, 3}.id(0)); got != "12:3:0" {
		t.Errorf("got %q", got)
	}
	for _, bad := range []message.ID{"", "x", message.ID(make([]byte, idBytes)), message.ID(strings.Repeat("\xff", idBytes)), message.ID(make([]byte, 21))} {
		if _, _, ok := parseID(bad); ok {
			t.Errorf("%s is taken for an id", bad)
		}
	}
}

func sampleEnvelope() *envelope {
	e := &envelope{pair: walimpls.Pair{Term: 3, Incarnation: 1}, first: 7, count: 2}
	for _, text := range []string{"hi", ""} {
		m := message.Message{Type: message.TypeData, Term: 3, Incarnation: 1, Payload: []byte(text)}
		e.payload = appendRecord(e.payload, message.AppendRecord(nil, &m))
	}
	return e
}

func TestEnvelopesComeBackAsTheyWere(t *testing.T) {
	want := sampleEnvelope()
	got, err := parseEnvelope(want.properties(), want.payload)
	must(t, err)
	if got.pair != want.pair || got.first != 7 || got.count != 2 || got.fence || got.next() != 9 {
		t.Fatalf("got %+v", got)
	}
	records, err := got.records(entry{5, 6})
	must(t, err)
	wantPayloads(t, records, "hi", "")
	if records[1].ID != (entry{5, 6}).id(1) {
		t.Errorf("id %s", text(records[1].ID))
	}
	for _, last := range []message.ID{"", entry{1, 2}.id(3)} {
		f := fenceEnvelope(walimpls.Pair{Term: 4, Incarnation: 2}, 9, last)
		got, err := parseEnvelope(f.properties(), f.payload)
		must(t, err)
		if !got.fence || got.lastRecord != last {
			t.Errorf("got %+v, want last record %q", got, last)
		}
	}
}

func TestForeignAndNewerMessagesAreRefusedWithTheReason(t *testing.T) {
	e := sampleEnvelope()
	if _, err := parseEnvelope(map[string]string{"x": "y"}, e.payload); !errors.Is(err, errForeign) {
		t.Errorf("got %v", err)
	}
	p := e.properties()
	p[propFormat] = "2"
	_, err := parseEnvelope(p, e.payload)
	if !errors.Is(err, errBadFormat) || !strings.Contains(err.Error(), `format "2"`) || !strings.Contains(err.Error(), "reads format 1") {
		t.Errorf("got %v", err)
	}
	e.payload = append(e.payload, 1)
	if _, err := e.records(entry{}); !errors.Is(err, message.ErrBadRecord) {
		t.Errorf("got %v", err)
	}
}

func FuzzEnvelope(f *testing.F) {
	e := sampleEnvelope()
	p := e.properties()
	f.Add(p[propFormat], p[propPair], p[propFirst], p[propCount], "", e.payload)
	f.Add("1", "1.1", "1", "4096", "none", []byte{0, 0, 0})
	f.Add("1", "-1.x", "", "99999999999999999999", "1:2:3", []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, format, pair, first, count, last string, payload []byte) {
		props := map[string]string{propFormat: format, propPair: pair, propFirst: first, propCount: count}
		if last != "" {
			props[propLast] = last
		}
		e, err := parseEnvelope(props, payload)
		if err != nil {
			return
		}
		records, err := e.records(entry{1, 2})
		if err == nil && len(records) != e.count {
			t.Fatalf("%d records of %d", len(records), e.count)
		}
	})
}

func TestLayoutOfATopicIsReadFromItsStatistics(t *testing.T) {
	l, err := parseLayout([]byte(`{"lastConfirmedEntry":"10:-1","currentLedgerEntries":0,
		"ledgers":[{"ledgerId":6,"entries":0},{"ledgerId":8,"entries":25},{"ledgerId":9,"entries":2},{"ledgerId":10,"entries":0}],
		"cursors":{"wal":{"markDeletePosition":"8:4"},"other":{"markDeletePosition":"8:9"}}}`))
	must(t, err)
	if l.empty() || l.first() != (entry{8, 0}) || l.last() != (entry{9, 1}) || !l.cursorOK || l.cursor != (entry{8, 5}) {
		t.Errorf("got %+v", l)
	}
	for _, k := range []struct {
		e, want entry
		ok      bool
	}{{entry{8, 3}, entry{8, 4}, true}, {entry{8, 24}, entry{9, 0}, true}, {entry{7, 9}, entry{8, 0}, true}, {entry{9, 1}, entry{}, false}} {
		if got, ok := l.after(k.e); got != k.want || ok != k.ok {
			t.Errorf("after %s comes %s %v", k.e, got, ok)
		}
	}
	l, err = parseLayout([]byte(`{"lastConfirmedEntry":"8:24","currentLedgerEntries":26,"ledgers":[{"ledgerId":8,"entries":0}],"cursors":{}}`))
	must(t, err)
	if l.last() != (entry{8, 24}) || l.cursorOK {
		t.Errorf("an entry that is not confirmed is shown: %+v", l)
	}
	if l, err = parseLayout([]byte(`{"lastConfirmedEntry":"6:-1","ledgers":[{"ledgerId":6,"entries":0}],"cursors":{}}`)); err != nil || !l.empty() {
		t.Errorf("an empty topic is %+v, %v", l, err)
	}
	for _, bad := range []string{``, `{}`, `{"lastConfirmedEntry":"x"}`, `{"lastConfirmedEntry":"1:2","cursors":{"wal":{"markDeletePosition":"?"}}}`} {
		if _, err := parseLayout([]byte(bad)); err == nil {
			t.Errorf("%q is read without an error", bad)
		}
	}
}

func TestPairsAreDecidedAgainstTheHighest(t *testing.T) {
	high := walimpls.Pair{Term: 5, Incarnation: 3}
	for _, k := range []struct {
		term, incarnation int64
		want              string
	}{{5, 4, "5.4"}, {5, 0, "5.4"}, {6, 0, "6.1"}, {6, 9, "6.9"}, {5, 3, ""}, {5, 1, ""}, {4, 99, ""}, {4, 0, ""}} {
		got, err := nextPair(rw("c", k.term, k.incarnation), high)
		var fenced *walimpls.FencedError
		if k.want == "" {
			if !errors.As(err, &fenced) || fenced.Highest != high {
				t.Errorf("%d.%d: got %v", k.term, k.incarnation, err)
			}
		} else if err != nil || got.String() != k.want {
			t.Errorf("%d.%d: got %s, %v", k.term, k.incarnation, got, err)
		}
	}
}

// The window against a model: whatever is pushed, refused, answered and ended in
// whatever order, each record has one outcome, indexes have no holes, order is kept.
func TestWindowKeepsOrderAndOneOutcomeForEach(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(20, 200).Draw(t, "broker's limit")
		w := &window{pair: walimpls.Pair{Term: 1, Incarnation: 1}, next: 5, batchBytes: rapid.IntRange(10, 400).Draw(t, "batch"), inFlight: rapid.IntRange(1, 4).Draw(t, "in flight")}
		var requests []*request
		places := map[*sent]entry{} // where the messages lie
		texts := map[*request][][]byte{}
		type placed struct {
			text string
			id   message.ID
		}
		var log []placed
		var under []*sent
		at := entry{1, 0}
		n := 0
		step := func() {
			for s := w.take(); s != nil; s = w.take() {
				if len(s.env.payload) > limit {
					w.tooLarge(s, func(int) error { return walimpls.ErrTooLarge })
					continue
				}
				if want := uint64(5 + len(log)); s.env.first != want {
					t.Fatalf("message begins with index %d, want %d", s.env.first, want)
				}
				at.entry++
				rest := s.env.payload
				for i := range s.env.count {
					var rec []byte
					rec, rest = cutRecord(rest)
					log = append(log, placed{string(rec), at.id(i)})
				}
				places[s] = at
				under = append(under, s)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				var records [][]byte
				for range rapid.IntRange(1, 6).Draw(t, "records") {
					n++
					records = append(records, []byte(fmt.Sprintf("%d-%s", n, strings.Repeat("x", rapid.IntRange(0, 150).Draw(t, "size")))))
				}
				r := newRequest(slices.Clone(records))
				w.push(r)
				requests = append(requests, r)
				texts[r] = records
				step()
			},
			"answer": func(t *rapid.T) {
				if len(under) == 0 {
					t.Skip("nothing under way")
				}
				s := under[0]
				under = under[1:]
				if rapid.Bool().Draw(t, "lost") {
					w.acked(s, entry{}, false)
				}
				w.acked(s, places[s], true)
				step()
			},
			"withdraw": func(t *rapid.T) {
				if len(w.queue) == 0 {
					t.Skip("nothing waits")
				}
				w.withdraw(w.queue[rapid.IntRange(0, len(w.queue)-1).Draw(t, "which")], walimpls.ErrTimeout)
				step()
			},
			"": func(t *rapid.T) {
				bytes := 0
				for _, r := range w.queue {
					for _, rec := range r.records[r.taken:] {
						bytes += len(rec)
					}
				}
				if bytes != w.queuedBytes || len(w.sent) > w.inFlight {
					t.Fatalf("%d bytes wait, counted %d; %d under way", bytes, w.queuedBytes, len(w.sent))
				}
			},
		})
		w.end(walimpls.ErrUnknownOutcome, walimpls.ErrClosed)
		stored := map[string]message.ID{}
		for _, p := range log {
			stored[p.text] = p.id
		}
		for _, r := range requests {
			select {
			case <-r.done:
			default:
				t.Fatalf("a request is not done: %d open", r.open)
			}
			for i, out := range r.out {
				id, there := stored[string(texts[r][i])]
				switch {
				case out.State == walimpls.Stored && (!there || id != out.ID),
					out.State == walimpls.NotStored && there,
					out.State != walimpls.Stored && out.Err == nil:
					t.Fatalf("record %q: %+v, in the store: %v %s", texts[r][i], out, there, text(id))
				}
			}
		}
	})
}

func TestConfigurationProblemsAreNamedAllAtOnce(t *testing.T) {
	good := walimpls.Config{keyServiceURL: "pulsar://a:6650,b:6650", keyAdminURL: "https://a:8443/"}
	o, err := NewBuilder().Build(t.Context(), good, nil)
	must(t, err)
	closeOpener(t, o)
	_, err = NewBuilder().Build(t.Context(), walimpls.Config{
		keyServiceURL: "kafka://x:1", keyAdminURL: "nonsense", keyTenant: "a b", keyToken: "geheim", keyTokenFile: "/no/such/file",
		keyTLSCert: "/no/such/cert", keyRequestTimeout: "1ms", keyInFlight: 0, keyBatchBytes: "1GiB", keyOAuth2KeyFile: "/no/such/key",
	}, nil)
	wantIs(t, err, walimpls.ErrInvalidArgument)
	for _, key := range []string{keyServiceURL, keyAdminURL, keyTenant, keyToken, keyTokenFile, keyTLSCert, keyRequestTimeout, keyInFlight, keyBatchBytes, keyOAuth2Issuer, keyOAuth2KeyFile} {
		if !strings.Contains(err.Error(), `"`+key+`"`) {
			t.Errorf("the problem with %s is not named in: %v", key, err)
		}
	}
	if strings.Contains(err.Error(), "geheim") {
		t.Errorf("a secret is shown: %v", err)
	}
	_, err = NewBuilder().Build(t.Context(), walimpls.Config{keyServiceURL: "pulsar://a:6650", keyAdminURL: "http://a:8080", "servce_url": "x"}, nil)
	if err == nil || !strings.Contains(err.Error(), keyServiceURL) {
		t.Errorf("an unknown key is answered with %v", err)
	}
	must(t, NewBuilder().Describe().Validate())
}
