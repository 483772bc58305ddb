package kafka

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/walrig/walrig/sdk/walimpls"
)

func TestTheDescriptionIsValid(t *testing.T) { must(t, NewBuilder().Describe().Validate()) }

func TestAConfigurationIsCheckedAsAWhole(t *testing.T) {
	_, err := NewBuilder().Build(context.Background(), walimpls.Config{
		"brokers": []string{"nohost", "h:0"}, "topic_prefix": "a/b", "replication_factor": 2, "min_insync_replicas": 3, "segment_bytes": 1,
		"batch_bytes": "1GiB", "dial_timeout": "1h", "tls_ca": "/x", "sasl_mechanism": "plain", "client_id": "",
	}, nil)
	wantIs(t, err, walimpls.ErrInvalidArgument)
	for _, part := range []string{`"nohost" is not host:port`, `"h:0" is not host:port`, keyTopicPrefix, keyMinInSync, keySegmentBytes, keyBatchBytes,
		keyDialTimeout, "no effect without tls", "plain needs sasl_username", keyClientID} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not speak of %q: %v", part, err)
		}
	}
}

func TestEveryBadValueIsRefused(t *testing.T) {
	dir := t.TempDir()
	junk := filepath.Join(dir, "junk.pem")
	must(t, os.WriteFile(junk, []byte("junk"), 0o600))
	good := walimpls.Config{"brokers": "127.0.0.1:9092"}
	for name, cfg := range map[string]walimpls.Config{
		"no brokers": {}, "empty brokers": {"brokers": ""}, "unknown key": with(good, "brokerz", "x"), "codec": with(good, "compression", "rar"),
		"mechanism": with(good, "sasl_mechanism", "gssapi"), "internal prefix": with(good, "topic_prefix", "__consumer"),
		"long prefix": with(good, "topic_prefix", strings.Repeat("x", 49)), "negative copies": with(good, "replication_factor", -1),
		"password alone": with(good, "sasl_password", "x"), "missing CA": with(good, "tls", true, "tls_ca", filepath.Join(dir, "none")),
		"CA is no PEM": with(good, "tls", true, "tls_ca", junk), "cert without key": with(good, "tls", true, "tls_cert", junk),
		"cert is no PEM": with(good, "tls", true, "tls_cert", junk, "tls_key", junk), "zero timeout": with(good, "request_timeout", "0s"),
		"fetch wait": with(good, "fetch_wait", "1m"), "prefix chars": with(good, "topic_prefix", "a b"),
	} {
		if _, err := NewBuilder().Build(context.Background(), cfg, nil); err == nil {
			t.Errorf("%s: accepted", name)
		} else {
			wantIs(t, err, walimpls.ErrInvalidArgument)
		}
	}
}

func TestSecretsAreMarkedAndNeverShown(t *testing.T) {
	for _, f := range configFields {
		if secret := strings.Contains(f.Name, "password"); f.Secret != secret {
			t.Errorf("%s: secret is %t", f.Name, f.Secret)
		}
	}
	_, err := NewBuilder().Build(context.Background(), walimpls.Config{"brokers": "h:1", "sasl_mechanism": "scram-sha-256", "sasl_username": "u\x00", "sasl_password": "hunter2\x00"}, nil)
	if err != nil && strings.Contains(err.Error(), "hunter2") {
		t.Errorf("the password is in the error: %v", err)
	}
}

// The reference of the keys is the table in the code.
func TestDocumentationOfTheKeysIsTheTable(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "kafka.md"))
	must(t, err)
	want := configTable()
	if !strings.Contains(string(text), want) {
		t.Errorf("docs/kafka.md lacks the table of keys as it is:\n%s", want)
	}
}

// configTable is the table of keys in Markdown.
func configTable() string {
	var b strings.Builder
	b.WriteString("| key | type | default | meaning |\n|---|---|---|---|\n")
	for _, f := range configFields {
		def := "–"
		switch v := f.Default.(type) {
		case nil:
			if f.Required {
				def = "required"
			}
		case string:
			def = "`" + v + "`"
		case int:
			def = "`0`"
		case bool:
			def = "`false`"
		}
		doc := f.Doc
		if len(f.OneOf) > 0 {
			doc += ": " + strings.Join(f.OneOf, ", ")
		}
		if f.Secret {
			doc += " (secret)"
		}
		b.WriteString("| `" + f.Name + "` | " + string(f.Type) + " | " + def + " | " + doc + " |\n")
	}
	return b.String()
}

func TestASettingThatLosesRecordsIsNamedWithItsCure(t *testing.T) {
	good := map[string]string{cfgCleanup: "delete", cfgRetentionMs: "-1", cfgRetention: "-1", cfgMaxMessage: "8388608", cfgMinInSync: "1", cfgUnclean: "false"}
	if p, _ := topicProblems(good, 1); len(p) > 0 {
		t.Fatal(p)
	}
	for key, c := range map[string][2]string{
		cfgCleanup: {"compact,delete", "cleanup.policy=delete"}, cfgRetentionMs: {"604800000", "retention.ms=-1"}, cfgRetention: {"1", "retention.bytes=-1"},
		cfgMaxMessage: {"1048588", "max.message.bytes=8388608"}, cfgMinInSync: {"0", "min.insync.replicas=1"}, cfgUnclean: {"true", "unclean.leader.election.enable=false"},
	} {
		bad := map[string]string{}
		for k, v := range good {
			bad[k] = v
		}
		bad[key] = c[0]
		problems, fixes := topicProblems(bad, 1)
		if len(problems) != 1 || !strings.Contains(problems[0], key) || fixes[0] != c[1] {
			t.Errorf("%s=%s: %v, %v", key, c[0], problems, fixes)
		}
	}
}
