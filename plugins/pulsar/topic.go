package pulsar

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// topicSuffix ends every topic's name: a channel may be called x-partition-3,
// and Pulsar takes that for a part of another topic.
const topicSuffix = ".wal"

// cursorName is the durable subscription that holds the data of a log. It has no
// consumer, ever: only its position counts.
const cursorName = "wal"

// The properties of the cursor.
const (
	cursorStoreID   = "walrig-store-id"
	cursorTruncated = "walrig-truncated-before"
)

func topicOf(channel string) string { return channel + topicSuffix }

// fullTopic is the name that the Pulsar client takes.
func (s *settings) fullTopic(topic string) string {
	return "persistent://" + s.tenant + "/" + s.namespace + "/" + topic
}

// ledger is a piece of a topic.
type ledger struct {
	id, entries int64
}

// layout is where the entries of a topic are: its ledgers that have some, in order.
type layout struct {
	ledgers []ledger
	// cursor is the first entry that the cursor holds; ok is false if there is no cursor.
	cursor   entry
	cursorOK bool
}

func (l *layout) empty() bool  { return len(l.ledgers) == 0 }
func (l *layout) first() entry { return entry{l.ledgers[0].id, 0} }
func (l *layout) last() entry {
	last := l.ledgers[len(l.ledgers)-1]
	return entry{last.id, last.entries - 1}
}

// after is the entry behind e, false if there is none.
func (l *layout) after(e entry) (entry, bool) {
	for _, led := range l.ledgers {
		switch {
		case led.id == e.ledger && e.entry+1 < led.entries:
			return entry{e.ledger, e.entry + 1}, true
		case led.id > e.ledger:
			return entry{led.id, 0}, true
		}
	}
	return entry{}, false
}

// layout asks for the topic's statistics.
func (a *admin) layout(ctx context.Context, topic string) (*layout, error) {
	r, err := a.call(ctx, http.MethodGet, a.topicPath(topic, "internalStats"), "", nil)
	if err != nil {
		return nil, err
	}
	return parseLayout(r.body)
}

func parseLayout(body []byte) (*layout, error) {
	var stats struct {
		LastConfirmedEntry   string `json:"lastConfirmedEntry"`
		CurrentLedgerEntries int64  `json:"currentLedgerEntries"`
		Ledgers              []struct {
			ID      int64 `json:"ledgerId"`
			Entries int64 `json:"entries"`
		} `json:"ledgers"`
		Cursors map[string]struct {
			MarkDelete string `json:"markDeletePosition"`
		} `json:"cursors"`
	}
	if err := json.Unmarshal(body, &stats); err != nil {
		return nil, fmt.Errorf("the topic's statistics: %w", err)
	}
	confirmed, err := parseEntry(stats.LastConfirmedEntry)
	if err != nil {
		return nil, fmt.Errorf("the topic's statistics: last confirmed entry: %w", err)
	}
	l := &layout{}
	for _, led := range stats.Ledgers {
		n := led.Entries
		// The ledger that is written counts as empty in the list; what is
		// confirmed is durable, what is only counted may not be yet.
		if led.ID == confirmed.ledger {
			n = max(n, confirmed.entry+1)
		}
		if n > 0 && (led.ID <= confirmed.ledger || led.Entries > 0) {
			l.ledgers = append(l.ledgers, ledger{led.ID, n})
		}
	}
	if c, ok := stats.Cursors[cursorName]; ok {
		mark, err := parseEntry(c.MarkDelete)
		if err != nil {
			return nil, fmt.Errorf("the topic's statistics: cursor: %w", err)
		}
		l.cursor, l.cursorOK = entry{mark.ledger, mark.entry + 1}, true
	}
	return l, nil
}

// createTopic makes the topic; made is false if it was there.
func (a *admin) createTopic(ctx context.Context, topic string) (made bool, err error) {
	r, err := a.call(ctx, http.MethodPut, a.topicPath(topic), "", nil)
	if r.ok(err, http.StatusConflict) {
		return err == nil, nil
	}
	return false, err
}

// cursorInfo is what the cursor's properties say.
type cursorInfo struct {
	storeID string
	// point is the truncation point, "" for none.
	point message.ID
}

func (a *admin) cursor(ctx context.Context, topic string) (cursorInfo, error) {
	r, err := a.call(ctx, http.MethodGet, a.topicPath(topic, "subscription", cursorName, "properties"), "", nil)
	if err != nil {
		return cursorInfo{}, err
	}
	var props map[string]string
	if err := json.Unmarshal(r.body, &props); err != nil {
		return cursorInfo{}, fmt.Errorf("the cursor's properties: %w", err)
	}
	c := cursorInfo{storeID: props[cursorStoreID]}
	if c.storeID == "" {
		return c, walimpls.Errorf(walimpls.CodeCorrupt, "", "the subscription %q of topic %s has no property %q: walrig did not make it", cursorName, topic, cursorStoreID)
	}
	if text := props[cursorTruncated]; text != "" {
		if c.point, err = idLayout.Parse(text); err != nil {
			return c, walimpls.Errorf(walimpls.CodeCorrupt, "", "the subscription %q of topic %s: property %s: %w", cursorName, topic, cursorTruncated, err)
		}
	}
	return c, nil
}

// createCursor makes the cursor at the topic's beginning, together with the store
// id, unless it is there.
func (a *admin) createCursor(ctx context.Context, topic string) error {
	var random [16]byte
	if _, err := rand.Read(random[:]); err != nil {
		return err
	}
	r, err := a.call(ctx, http.MethodPut, a.topicPath(topic, "subscription", cursorName), "", map[string]any{
		"ledgerId": -1, "entryId": -1, "partitionIndex": -1,
		"properties": map[string]string{cursorStoreID: hex.EncodeToString(random[:])},
	})
	if r.ok(err, http.StatusConflict) {
		return nil
	}
	return err
}

// savePoint stores the truncation point.
func (a *admin) savePoint(ctx context.Context, topic string, c cursorInfo) error {
	point, err := idLayout.Format(c.point)
	if err != nil {
		return err
	}
	_, err = a.call(ctx, http.MethodPut, a.topicPath(topic, "subscription", cursorName, "properties"), "",
		map[string]string{cursorStoreID: c.storeID, cursorTruncated: point})
	return err
}

// resetCursor lets go of everything before e: whole ledgers are deleted.
func (a *admin) resetCursor(ctx context.Context, topic string, e entry) error {
	_, err := a.call(ctx, http.MethodPost, a.topicPath(topic, "subscription", cursorName, "resetcursor"), "", map[string]any{
		"ledgerId": e.ledger, "entryId": e.entry, "partitionIndex": -1, "batchIndex": -1,
	})
	return err
}

// unload makes the broker close the topic and its last ledger: nothing that was
// sent before lands afterwards.
func (a *admin) unload(ctx context.Context, topic string) error {
	_, err := a.call(ctx, http.MethodPut, a.topicPath(topic, "unload"), "", nil)
	return err
}

func (a *admin) deleteTopic(ctx context.Context, topic string) error {
	r, err := a.call(ctx, http.MethodDelete, a.topicPath(topic), url.Values{"force": {"true"}}.Encode(), nil)
	if r.ok(err, http.StatusNotFound) {
		return nil
	}
	return err
}

// read returns the message at e; errNoEntry is wrapped if there is none.
func (a *admin) read(ctx context.Context, topic string, e entry) (*envelope, error) {
	r, err := a.call(ctx, http.MethodGet, a.topicPath(topic, "ledger", fmt.Sprint(e.ledger), "entry", fmt.Sprint(e.entry)), "", nil)
	if errors.Is(err, errMissing) && strings.Contains(r.reason(), "Message id") {
		return nil, fmt.Errorf("message %s: %w", e, errNoEntry)
	}
	if err != nil {
		return nil, err
	}
	props := map[string]string{}
	if text := r.header.Get("X-Pulsar-PROPERTY"); text != "" {
		if err := json.Unmarshal([]byte(text), &props); err != nil {
			return nil, fmt.Errorf("message %s: its properties: %w", e, err)
		}
	}
	env, err := parseEnvelope(props, r.body)
	if err != nil {
		return nil, fmt.Errorf("message %s: %w", e, err)
	}
	return env, nil
}
