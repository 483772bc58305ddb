package wire

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/walrig/walrig/sdk/walimpls"
)

// The table of codes in the documentation is this one. To write it again:
//
//	WALRIG_TEST_UPDATE=1 go test -run TestDocumentedErrorCodesAreTheTables ./sdk/wire
func TestDocumentedErrorCodesAreTheTables(t *testing.T) {
	const begin, end = "<!-- BEGIN error codes: checked by sdk/wire/docs_test.go -->\n", "<!-- END error codes -->"
	var want strings.Builder
	want.WriteString("| code | gRPC code | retryable | meaning |\n|---|---|---|---|\n")
	for _, row := range walimpls.Codes() {
		if row.Code == walimpls.CodeAlreadyExists {
			break // what follows is the host's, for its own clients
		}
		retryable := "no"
		if row.Retryable {
			retryable = "yes"
		}
		fmt.Fprintf(&want, "| `%s` | `%s` | %s | %s |\n", row.Code, grpcName(statusCodes[row.Code]), retryable, row.Doc)
	}
	path := filepath.Join("..", "..", "docs", "plugin-protocol.md")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(b), begin)
	got, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no table of error codes", path)
	}
	if got == want.String() {
		return
	}
	if os.Getenv("WALRIG_TEST_UPDATE") == "" {
		t.Fatalf("%s is not up to date; see this test's comment", path)
	}
	if err := os.WriteFile(path, []byte(before+begin+want.String()+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// grpcName returns the name that the gRPC documentation uses.
func grpcName(c codes.Code) string {
	var out strings.Builder
	for i, r := range c.String() {
		if i > 0 && r >= 'A' && r <= 'Z' {
			out.WriteByte('_')
		}
		out.WriteRune(r)
	}
	return strings.ToUpper(strings.ReplaceAll(out.String(), "Canceled", "Cancelled"))
}
