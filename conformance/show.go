package conformance

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// How calls and results look in a trace: short, whatever they hold.

const maxShown = 48

func shorten(s string) string {
	if len(s) > maxShown {
		return s[:maxShown] + "…"
	}
	return s
}

func showPayload(b []byte) string {
	if len(b) > maxShown {
		return fmt.Sprintf("%s… %d bytes", strconv.Quote(string(b[:16])), len(b))
	}
	return strconv.Quote(string(b))
}

func showID(id message.ID) string {
	switch {
	case id == "":
		return "none"
	case len(id) > 24:
		return fmt.Sprintf("%s… %d bytes", id[:8], len(id))
	}
	return id.String()
}

func showIDs(ids []message.ID) string {
	switch len(ids) {
	case 0:
		return "no ids"
	case 1:
		return "id " + showID(ids[0])
	}
	return fmt.Sprintf("%d ids %s … %s", len(ids), showID(ids[0]), showID(ids[len(ids)-1]))
}

func showBatch(recs []message.Message) string {
	if len(recs) == 0 {
		return "nothing"
	}
	var b strings.Builder
	if len(recs) > 1 {
		fmt.Fprintf(&b, "%d records: ", len(recs))
	}
	for i := range recs {
		switch {
		case i == 2 && len(recs) > 3:
			b.WriteString(", …")
			continue
		case i > 2 && i < len(recs)-1:
			continue
		case i > 0:
			b.WriteString(", ")
		}
		m := &recs[i]
		if m.ID != "" {
			fmt.Fprintf(&b, "%s ", showID(m.ID))
		}
		if m.Type != message.TypeData {
			fmt.Fprintf(&b, "%s ", m.Type)
		}
		if m.Term != 0 {
			fmt.Fprintf(&b, "%d.%d ", m.Term, m.Incarnation)
		}
		b.WriteString(showPayload(m.Payload))
	}
	return b.String()
}

func showStart(s walimpls.Start) string {
	switch s.Policy {
	case walimpls.PolicyAll:
		return "All"
	case walimpls.PolicyLatest:
		return "Latest"
	case walimpls.PolicyFrom:
		return "StartFrom " + showID(s.ID)
	case walimpls.PolicyAfter:
		return "StartAfter " + showID(s.ID)
	}
	return fmt.Sprintf("policy %d", int(s.Policy))
}
