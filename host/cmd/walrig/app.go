package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/walrig/walrig/sdk/client"
	"github.com/walrig/walrig/sdk/walimpls"
)

const (
	defaultAddr = "127.0.0.1:7700"
	// connectTimeout bounds the wait for a connection; callTimeout a whole
	// administrative call, which may have to wait for a plugin or an open.
	connectTimeout = 10 * time.Second
	callTimeout    = 60 * time.Second
)

// app is one run of the program: its streams, environment and global flags.
type app struct {
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	env    []string

	addr, tokenFile        string
	tlsCA, tlsCert, tlsKey string
	timeout                time.Duration
	output                 string
	quiet                  bool
}

// run runs the command line and returns the exit code.
func run(args []string) int {
	// Not the default of Go, which is to die of SIGPIPE: a closed stdout is a
	// normal end. And not ignored, which plugin processes would inherit.
	pipes := make(chan os.Signal, 1)
	signal.Notify(pipes, syscall.SIGPIPE)
	defer signal.Stop(pipes)
	ctx, stop := withSignals(context.Background())
	defer stop()
	a := &app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, env: os.Environ()}
	return a.run(ctx, args)
}

func (a *app) run(ctx context.Context, args []string) int {
	root := a.rootCmd()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	code := exitCode(ctx, err)
	// A command line that cannot be parsed must fail in the form it asks for too.
	asJSON := a.output == outputJSON || wantedOutput(args) == outputJSON
	if code != walimpls.ExitOK && (asJSON || !isBareInterrupt(err)) {
		printError(a.stderr, asJSON, err)
	}
	return code
}

// isBareInterrupt reports whether there is nothing to say but that the user
// pressed Ctrl-C, which the user knows.
func isBareInterrupt(err error) bool {
	var more *exitError
	return errors.Is(err, errInterrupted) && !errors.As(err, &more)
}

// sameSignal is how long after the first signal another one is taken for it.
const sameSignal = 250 * time.Millisecond

// withSignals ends the context at the first SIGINT or SIGTERM, with
// errInterrupted as the cause; the second ends the process.
func withSignals(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	stopping, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		var first time.Time
		for {
			select {
			case <-signals:
				// timeout(1) signals its child and then the child's group: that is
				// one wish, not two.
				if !first.IsZero() && time.Since(first) > sameSignal {
					os.Exit(walimpls.ExitInterrupted)
				}
				if first.IsZero() {
					first = time.Now()
				}
				cancel(errInterrupted)
			case <-stopping:
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(stopping)
		<-done
		cancel(nil)
	}
}

// wantedOutput finds -o in a command line without parsing it.
func wantedOutput(args []string) string {
	for i, arg := range args {
		if arg == "--" {
			break
		}
		for _, flag := range []string{"-o", "--output"} {
			if arg == flag && i+1 < len(args) {
				return args[i+1]
			}
			if v, ok := strings.CutPrefix(arg, flag+"="); ok {
				return v
			}
		}
		if v, ok := strings.CutPrefix(arg, "-o"); ok && !strings.HasPrefix(arg, "--") && v != "" {
			return v
		}
	}
	return outputText
}

func (a *app) rootCmd() *cobra.Command {
	root := &cobra.Command{
		Use:   "walrig",
		Short: "Host write-ahead logs, append to them, and read them",
		Long: `walrig hosts write-ahead logs. An application appends records to channels; the host stores each channel through a
backend plugin, which runs in a process of its own.

Start a host with "walrig serve", then:

  walrig append orders --create -f FILE
  walrig read orders`,
		SilenceErrors: true, SilenceUsage: true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return a.checkGlobals(cmd) },
	}
	group(root)
	root.SetOut(out{a.stdout})
	root.SetErr(a.stderr)
	root.SetIn(a.stdin)
	root.SetFlagErrorFunc(flagError)
	f := root.PersistentFlags()
	f.StringVar(&a.addr, "addr", "", "address of the host (default WALRIG_ADDR, else "+defaultAddr+")")
	f.StringVar(&a.tokenFile, "token-file", "", "file with the token to send (default WALRIG_TOKEN holds it)")
	f.StringVar(&a.tlsCA, "tls-ca", "", "connect with TLS, and trust the certificates in this file")
	f.StringVar(&a.tlsCert, "tls-cert", "", "connect with TLS, and show this certificate")
	f.StringVar(&a.tlsKey, "tls-key", "", "the key of --tls-cert")
	f.DurationVar(&a.timeout, "timeout", 0, "give up after this long (default: what suits the command)")
	f.StringVarP(&a.output, "output", "o", outputText, "output format: text or json (read: raw too)")
	root.AddCommand(
		a.serveCmd(), a.channelCmd(), a.appendCmd(), a.readCmd(), a.txnCmd(),
		a.vchannelCmd(), a.flushCmd(), a.filesCmd(), a.statusCmd(), a.pluginCmd(),
		a.conformCmd(), a.benchCmd(), a.verifyCmd(), a.backupCmd(),
		a.configCmd(), a.versionCmd(), a.completionCmd(),
	)
	return root
}

func (a *app) checkGlobals(cmd *cobra.Command) error {
	formats := []string{outputText, outputJSON}
	switch {
	case cmd.HasParent() && cmd.Parent().Name() == "bench":
		formats = append(formats, outputCSV)
	case cmd.Name() == "read":
		formats = append(formats, outputRaw)
	}
	if !slices.Contains(formats, a.output) {
		return usageError("use one of "+strings.Join(formats, ", "), "output format %q is not known to this command", a.output)
	}
	if a.timeout < 0 {
		return usageError("", "--timeout must not be negative")
	}
	if a.addr == "" {
		a.addr = a.getenv("WALRIG_ADDR")
	}
	if a.addr == "" {
		a.addr = defaultAddr
	}
	return nil
}

func (a *app) getenv(name string) string {
	for _, e := range slices.Backward(a.env) {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v
		}
	}
	return ""
}

func (a *app) out() out { return out{a.stdout} }

// dial connects to the host.
func (a *app) dial(ctx context.Context) (*client.Client, error) {
	opts, err := a.dialOptions()
	if err != nil {
		return nil, err
	}
	limit := connectTimeout
	if a.timeout > 0 {
		limit = min(limit, a.timeout)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return client.Dial(ctx, a.addr, opts...)
}

func (a *app) dialOptions() ([]client.Option, error) {
	opts := []client.Option{client.WithTimeout(0)}
	token := a.getenv("WALRIG_TOKEN")
	if a.tokenFile != "" {
		data, err := os.ReadFile(a.tokenFile)
		if err != nil {
			return nil, usageError("", "--token-file: %v", err)
		}
		token = strings.TrimSpace(string(data))
	}
	if token != "" {
		opts = append(opts, client.WithToken(token))
	}
	if a.tlsCA == "" && a.tlsCert == "" && a.tlsKey == "" {
		return opts, nil
	}
	cfg, err := a.tlsConfig()
	if err != nil {
		return nil, err
	}
	return append(opts, client.WithTLS(cfg)), nil
}

func (a *app) tlsConfig() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if a.tlsCA != "" {
		pem, err := os.ReadFile(a.tlsCA)
		if err != nil {
			return nil, usageError("", "--tls-ca: %v", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, usageError("", "--tls-ca: no certificate in %s", a.tlsCA)
		}
	}
	if (a.tlsCert == "") != (a.tlsKey == "") {
		return nil, usageError("", "--tls-cert and --tls-key need each other")
	}
	if a.tlsCert != "" {
		cert, err := tls.LoadX509KeyPair(a.tlsCert, a.tlsKey)
		if err != nil {
			return nil, usageError("", "--tls-cert: %v", err)
		}
		cfg.Certificates = []tls.Certificate{cert}
	}
	return cfg, nil
}

// call runs f with a connection and a context that ends after --timeout, or
// after callTimeout.
func (a *app) call(ctx context.Context, f func(context.Context, *client.Client) error) error {
	limit := a.timeout
	if limit == 0 {
		limit = callTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	c, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	return f(ctx, c)
}
