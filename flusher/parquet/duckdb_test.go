package parquet_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/walrig/walrig/flusher"
	"github.com/walrig/walrig/flusher/parquet"
	"github.com/walrig/walrig/internal/s3test"
	"github.com/walrig/walrig/sdk/message"
)

// duckdbVersion is what the tests install, once, into the user's cache.
const duckdbVersion = "2.0.1"

// installTimeout bounds the download of about 20 MB.
const installTimeout = 5 * time.Minute

// duckdb returns a Python that has DuckDB. It is kept in a virtual environment in
// the user's cache folder, so that it is downloaded once a machine.
func duckdb(t *testing.T) (python string) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs DuckDB: run without -short")
	}
	python, err := installDuckDB()
	if err != nil {
		if os.Getenv(s3test.EnvRequire) == "1" {
			t.Fatalf("%s=1, but DuckDB cannot be installed: %v", s3test.EnvRequire, err)
		}
		t.Skipf("no DuckDB: %v (set %s=1 to make this a failure)", err, s3test.EnvRequire)
	}
	return python
}

func installDuckDB() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	folder := filepath.Join(cache, "walrig-tests")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	// Several packages, and runs, may want it at once: one installs.
	lock, err := os.OpenFile(filepath.Join(folder, "duckdb.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), installTimeout)
	defer cancel()
	for syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("somebody else installs it and does not finish: %w", ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
	env := filepath.Join(folder, "duckdb-"+duckdbVersion)
	python := filepath.Join(env, "bin", "python3")
	if _, err := os.Stat(filepath.Join(env, "complete")); err == nil {
		return python, nil
	}
	for _, command := range [][]string{
		{"python3", "-m", "venv", "--clear", env},
		{python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:", "duckdb==" + duckdbVersion},
	} {
		cmd := exec.CommandContext(ctx, command[0], command[1:]...)
		cmd.WaitDelay = 5 * time.Second
		if out, err := cmd.CombinedOutput(); err != nil {
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			return "", fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, lines[len(lines)-1])
		}
	}
	return python, os.WriteFile(filepath.Join(env, "complete"), nil, 0o644)
}

// query runs one script of SQL and returns the rows of its last statement.
func query(t *testing.T, python, sql string) [][]any {
	t.Helper()
	const program = `
import duckdb, json, sys
c = duckdb.connect()
c.execute("SET autoinstall_known_extensions = false")
for statement in duckdb.extract_statements(sys.stdin.read()):
    r = c.execute(statement)
print(json.dumps([[v.hex() if isinstance(v, bytes) else v for v in row] for row in r.fetchall()], default=str))
`
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "-c", program)
	cmd.Stdin = strings.NewReader(sql)
	cmd.WaitDelay = 5 * time.Second
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s\n%v: %s", sql, err, problems.String())
	}
	var rows [][]any
	if err := json.Unmarshal(out.Bytes(), &rows); err != nil {
		t.Fatalf("%s\n%v: %s", sql, err, out.String())
	}
	return rows
}

// wantQuery compares a query's rows, each printed with %v.
func wantQuery(t *testing.T, python, sql string, want ...string) {
	t.Helper()
	rows := query(t, python, sql)
	got := make([]string, len(rows))
	for i, row := range rows {
		got[i] = fmt.Sprint(row)
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%s\ngave\n%s\nwant\n%s", sql, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// The queries of docs/files.md work on files that walrig wrote.
func TestDuckDBReadsWhatWasFlushed(t *testing.T) {
	python := duckdb(t)
	dir := t.TempDir()
	s := openSink(t, "file://"+dir, parquet.Options{RowGroupBytes: 4096})
	defer func() { _ = s.Close() }()
	ctx := context.Background()
	v, err := s.Open(ctx, flusher.SinkKey{PChannel: "orders", StoreID: "store-1", VChannel: "eu", Term: 3})
	if err != nil {
		t.Fatal(err)
	}
	base := message.NewTick(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).UnixMilli(), 0)
	for f := range 2 {
		var rows []message.Message
		for i := range 500 {
			n := f*500 + i
			m := message.Message{
				ID: message.Uint64ID(uint64(n)), Type: message.TypeData, VChannel: "eu", Term: 3, TimeTick: base + message.Tick(n),
				Payload: fmt.Appendf(nil, `{"order": %d}`, n), Properties: map[string]string{"country": []string{"de", "fr"}[n%2], "n": fmt.Sprint(n)},
			}
			if n == 7 {
				m.TxnID, m.Properties, m.Payload = 1<<63+1, nil, []byte{0, 0xff}
			}
			rows = append(rows, m)
		}
		if _, err := v.Flush(ctx, rows, message.Checkpoint{StoreID: "store-1", ID: "x", Term: 3, Tick: rows[499].TimeTick}); err != nil {
			t.Fatal(err)
		}
	}
	// A file that no manifest lists must not be counted by who follows the manifest.
	files, err := v.Files(ctx)
	if err != nil || len(files) != 2 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	stray, err := os.ReadFile(files[0].Path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(files[0].Path), "stray.parquet"), stray, 0o644); err != nil {
		t.Fatal(err)
	}
	manifests, err := filepath.Glob(filepath.Join(dir, "orders", "store-1", "manifests", "eu", "*.json"))
	if err != nil || len(manifests) == 0 {
		t.Fatalf("manifests %q: %v", manifests, err)
	}
	newest := manifests[len(manifests)-1]

	listed := fmt.Sprintf("['%s', '%s']", files[0].Path, files[1].Path)
	wantQuery(t, python, `SELECT count(*), min(time_tick), max(time_tick) FROM read_parquet(`+listed+`)`,
		fmt.Sprintf("[1000 %v %v]", float64(base), float64(base+999)))
	wantQuery(t, python, `SELECT column_name, column_type FROM (DESCRIBE SELECT * FROM read_parquet(`+listed+`))`,
		"[message_id BLOB]", "[time_tick UBIGINT]", "[term BIGINT]", "[type VARCHAR]", "[vchannel VARCHAR]",
		"[txn_id UBIGINT]", "[properties MAP(VARCHAR, VARCHAR)]", "[payload BLOB]")
	wantQuery(t, python, `SELECT properties['country'], count(*) FROM read_parquet(`+listed+`) WHERE cardinality(properties) > 0 GROUP BY 1 ORDER BY 1`,
		"[de 500]", "[fr 499]")
	wantQuery(t, python, `SELECT message_id, type, term, vchannel, txn_id::VARCHAR, cardinality(properties), payload FROM read_parquet(`+listed+`) WHERE time_tick = `+fmt.Sprint(uint64(base)+7),
		"[0000000000000007 data 3 eu 9223372036854775809 0 00ff]")
	wantQuery(t, python, `SELECT ('0x' || hex(message_id))::UBIGINT AS id, make_timestamp((time_tick >> 18)::BIGINT * 1000) AS time, decode(payload)->>'order' FROM read_parquet(`+listed+`) ORDER BY time_tick DESC LIMIT 1`,
		"[999 2026-01-02 03:04:05 999]")
	wantQuery(t, python, `
		SET VARIABLE files = (SELECT list('`+dir+`/' || f.key) FROM (SELECT unnest(files) AS f FROM read_json('`+newest+`')));
		SELECT count(*), count(DISTINCT message_id) FROM read_parquet(getvariable('files'))`,
		"[1000 1000]")
	wantQuery(t, python, `SELECT bool_and(stats_min_value IS NOT NULL), count(*) > 4, any_value(compression) FROM parquet_metadata(`+listed+`) WHERE path_in_schema = 'time_tick'`,
		"[true true ZSTD]")
}
