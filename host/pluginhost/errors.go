package pluginhost

import (
	"errors"
	"fmt"
	"strings"

	"github.com/walrig/walrig/sdk/walimpls"
)

// Reason says why a start failed.
type Reason string

// The reasons. Where waiting can help (see StartError.Permanent) is said per failure.
const (
	ReasonConfig        Reason = "config"         // the plugin's entry in the host's configuration is wrong
	ReasonMissing       Reason = "missing"        // there is no such binary
	ReasonNotExecutable Reason = "not_executable" // a folder, no permission, another architecture, no interpreter
	ReasonPin           Reason = "pin"            // the binary is not the pinned one
	ReasonSystem        Reason = "system"         // the system refused a process, a pipe or a socket folder
	ReasonExited        Reason = "exited"         // the process ended before it was ready
	ReasonHandshake     Reason = "handshake"      // the process is no walrig plugin, or an incomplete one
	ReasonVersion       Reason = "version"        // host and plugin have no protocol version in common
	ReasonConnect       Reason = "connect"        // the plugin's socket does not answer
	ReasonTimeout       Reason = "timeout"        // the start timeout passed
	ReasonDescription   Reason = "description"    // Describe failed, is invalid, or names another backend
	ReasonConfigure     Reason = "configure"      // the plugin refused its configuration
	ReasonStopped       Reason = "stopped"        // the host gave the start up
)

// StartError is the one error of a start that failed. It is an ErrPluginStart,
// and what caused it (a context error, the backend's own typed error) is found
// by errors.Is and errors.As too.
type StartError struct {
	// Err is what crosses to clients: the code is CodePluginStart, or
	// CodeConfig where only another configuration helps.
	Err *walimpls.Error
	// Reason is the kind.
	Reason Reason
	// Path is the binary; "" if none was found.
	Path string
	// Exit says how the process ended by itself, such as "exit status 3"; "" if it did not.
	Exit string
	// Stderr holds the last lines that the process wrote to stderr.
	Stderr []string
	// Permanent says that waiting does not mend it.
	Permanent bool
	// Cause is what went wrong below, nil if nothing did.
	Cause error

	detail string // Err.Message without the plugin's name, for Status.LastExit
}

// Error returns the text of Err, which has everything in it but the hint.
func (e *StartError) Error() string { return e.Err.Error() }

// Unwrap returns Err and Cause.
func (e *StartError) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Err}
	}
	return []error{e.Err, e.Cause}
}

// Is makes every StartError an ErrPluginStart, also one whose code says CodeConfig.
func (e *StartError) Is(target error) bool { return target == walimpls.ErrPluginStart }

// withChannel returns a copy that names the channel that it kept from being opened.
func (e *StartError) withChannel(channel string) *StartError {
	c, inner := *e, *e.Err
	inner.Channel = channel
	c.Err = &inner
	return &c
}

// failure is a start that failed, before it is known what the process left behind.
type failure struct {
	reason    Reason
	permanent bool
	what      string // what happened, without plugin and path
	hint      string
	cause     error
}

func failf(reason Reason, permanent bool, cause error, hint, format string, args ...any) *failure {
	return &failure{reason: reason, permanent: permanent, cause: cause, hint: hint, what: fmt.Sprintf(format, args...)}
}

// lost says that the process may have ended.
func (f *failure) lost() bool {
	return f.reason == ReasonHandshake && !f.permanent || f.reason == ReasonConnect || errors.Is(f.cause, walimpls.ErrUnavailable)
}

// traces are what an attempt left behind, for the error.
type traces struct {
	path   string
	exit   string
	noise  []string // stdout before the handshake
	stderr []string
}

// startError makes the one error of a failed start out of the failure and the traces.
func (f *failure) startError(plugin string, t traces) *StartError {
	var b strings.Builder
	b.WriteString(strings.ReplaceAll(f.what, "\n", "; "))
	if t.path != "" && !strings.Contains(f.what, t.path) {
		fmt.Fprintf(&b, "; binary %s", t.path)
	}
	if t.exit != "" && !strings.Contains(f.what, t.exit) {
		fmt.Fprintf(&b, "; %s", t.exit)
	}
	quoted(&b, "instead of the handshake it wrote to stdout", t.noise)
	quoted(&b, "last stderr lines", t.stderr)
	code := walimpls.CodePluginStart
	if f.reason == ReasonConfig || f.reason == ReasonConfigure && errors.Is(f.cause, walimpls.ErrInvalidArgument) {
		code = walimpls.CodeConfig
	}
	return &StartError{
		Err: &walimpls.Error{
			Code: code, Message: fmt.Sprintf("plugin %q did not start: %s", plugin, b.String()),
			Hint: f.hint, Retryable: !f.permanent,
		},
		detail: b.String(),
		Reason: f.reason, Path: t.path, Exit: t.exit, Stderr: t.stderr, Permanent: f.permanent, Cause: f.cause,
	}
}

func quoted(b *strings.Builder, title string, lines []string) {
	if len(lines) == 0 {
		return
	}
	fmt.Fprintf(b, "; %s:", title)
	for i, line := range lines {
		if i > 0 {
			b.WriteString(" |")
		}
		fmt.Fprintf(b, " %q", line)
	}
}
