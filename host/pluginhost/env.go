package pluginhost

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/walrig/walrig/sdk/walimpls"
)

// hostEnv lists the variables that a plugin gets from the host's environment.
// Nothing in it can hold a credential (which is why the proxy variables are
// not: their URLs may). Whatever else a plugin needs goes into its Env.
var hostEnv = []string{
	"HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "LOGNAME", "PATH",
	"SSL_CERT_DIR", "SSL_CERT_FILE", "TMPDIR", "TZ", "USER",
}

// hostEnvPrefix: the locale variables are passed too.
const hostEnvPrefix = "LC_"

// depthVariable counts how many plugins deep a process runs. It ends the chain
// when a plugin's main starts a host that starts the same plugin.
const (
	depthVariable = "WALRIG_PLUGIN_DEPTH"
	maxDepth      = 3
)

// reservedEnvPrefix is go-plugin's; its variables and ours are not for Config.Env.
const reservedEnvPrefix = "PLUGIN_"

// depth returns how many plugins deep this process runs, 0 for a host.
func depth(lookup func(string) (string, bool)) int {
	text, _ := lookup(depthVariable)
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// pluginEnv builds the whole environment of a plugin: the allow-listed part of
// the host's, under the plugin's own, under what the protocol needs.
func pluginEnv(host []string, own map[string]string, protocol []string, depth int) []string {
	env := map[string]string{}
	for _, kv := range host {
		if k, v, ok := strings.Cut(kv, "="); ok && allowedFromHost(k) {
			env[k] = v
		}
	}
	maps.Copy(env, own)
	for _, kv := range protocol {
		if k, v, ok := strings.Cut(kv, "="); ok {
			env[k] = v
		}
	}
	env[depthVariable] = strconv.Itoa(depth + 1)
	out := make([]string, 0, len(env))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		out = append(out, k+"="+env[k])
	}
	return out
}

func allowedFromHost(key string) bool {
	return slices.Contains(hostEnv, key) || strings.HasPrefix(key, hostEnvPrefix)
}

// checkEnv returns what is wrong with a plugin's own variables.
func checkEnv(env map[string]string, cookieKey string) []string {
	var problems []string
	for _, k := range slices.Sorted(maps.Keys(env)) {
		switch {
		case k == "" || strings.ContainsAny(k, "=\x00"):
			problems = append(problems, fmt.Sprintf("env: %q is not a name of a variable", k))
		case k == depthVariable || k == cookieKey || strings.HasPrefix(k, reservedEnvPrefix):
			problems = append(problems, fmt.Sprintf("env: %s is reserved for the protocol between host and plugin", k))
		case strings.ContainsRune(env[k], 0):
			problems = append(problems, fmt.Sprintf("env: the value of %s has a zero byte in it", k))
		}
	}
	return problems
}

// check returns everything that is wrong with the entry, as one failure that
// waiting does not mend, or nil.
func (c Config) check(cookieKey string) *failure {
	problems := checkEnv(c.Env, cookieKey)
	if err := walimpls.ValidateName("backend", c.Backend); err != nil {
		problems = append(problems, walimpls.AsError(err).Message)
	}
	if c.SHA256 != "" && !isSum(c.SHA256) {
		problems = append(problems, fmt.Sprintf("sha256: %q is not a checksum of 64 hexadecimal digits", c.SHA256))
	}
	if c.StartTimeout < 0 || c.HealthInterval < 0 || c.HealthMisses < 0 {
		problems = append(problems, "times and counts must not be negative")
	}
	if len(problems) == 0 {
		return nil
	}
	return failf(ReasonConfig, true, nil, "correct the entry of this plugin in the host's configuration",
		"its configuration is wrong: %s", strings.Join(problems, "; "))
}

// checkDepth refuses a start in a process that is a plugin too many times over.
func checkDepth() *failure {
	d := depth(os.LookupEnv)
	if d < maxDepth {
		return nil
	}
	return failf(ReasonConfig, true, nil, "a plugin's main must call plugin.Serve and must not start plugins",
		"this process is itself a plugin of a plugin, %d deep; it seems that the plugin starts itself", d)
}

func isSum(text string) bool {
	if len(text) != 64 {
		return false
	}
	return strings.Trim(strings.ToLower(text), "0123456789abcdef") == ""
}
