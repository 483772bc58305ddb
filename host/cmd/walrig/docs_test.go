package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/walrig/walrig/sdk/walimpls"
)

var update = flag.Bool("update", false, "write docs/cli.md")

func TestDocsMatchTheCommands(t *testing.T) {
	intro, err := os.ReadFile(filepath.Join("testdata", "cli_intro.md"))
	if err != nil {
		t.Fatal(err)
	}
	want := cliMarkdown(string(intro))
	path := filepath.Join("..", "..", "..", "docs", "cli.md")
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil || string(got) != want {
		t.Fatalf("docs/cli.md is not what the commands say (%v): run `make docs`", err)
	}
}

func TestEveryCommandIsDocumented(t *testing.T) {
	walk((&app{}).rootCmd(), func(c *cobra.Command) {
		if c.Short == "" || strings.HasSuffix(c.Short, ".") {
			t.Errorf("%s: short text %q", c.CommandPath(), c.Short)
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" {
				t.Errorf("%s: flag --%s has no text", c.CommandPath(), f.Name)
			}
		})
	})
}

func walk(c *cobra.Command, visit func(*cobra.Command)) {
	visit(c)
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			walk(sub, visit)
		}
	}
}

func cliMarkdown(intro string) string {
	var b strings.Builder
	b.WriteString(intro)
	b.WriteString("\n### Exit codes\n\n| exit | meaning | error codes |\n|---|---|---|\n")
	for _, e := range []struct {
		exit    int
		meaning string
	}{
		{walimpls.ExitOK, "done"}, {walimpls.ExitFailure, "definite failure"}, {walimpls.ExitUsage, "usage or configuration"},
		{walimpls.ExitUnknown, "outcome unknown: a record, or an administrative call, may or may not have been carried out"},
		{walimpls.ExitUnreachable, "unreachable, or timed out with nothing sent"}, {walimpls.ExitInterrupted, "interrupted"},
	} {
		var codes []string
		for _, c := range walimpls.Codes() {
			if c.Exit == e.exit {
				codes = append(codes, "`"+string(c.Code)+"`")
			}
		}
		fmt.Fprintf(&b, "| %d | %s | %s |\n", e.exit, e.meaning, strings.Join(codes, " "))
	}
	b.WriteString("\n### Error codes\n\n| code | retryable | meaning |\n|---|---|---|\n")
	for _, c := range walimpls.Codes() {
		retry := "no"
		if c.Retryable {
			retry = "yes"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", c.Code, retry, c.Doc)
	}
	root := (&app{}).rootCmd()
	b.WriteString("\n## Global flags\n\n")
	flagTable(&b, root.PersistentFlags())
	b.WriteString("\n## Commands\n\n<!-- Generated from the commands in host/cmd/walrig: `make docs`. -->\n")
	walk(root, func(c *cobra.Command) {
		if c.RunE == nil || isGroup(c) {
			return
		}
		text := c.Long
		if text == "" {
			text = c.Short + "."
		}
		fmt.Fprintf(&b, "\n### %s\n\n```\n%s\n```\n\n", c.CommandPath(), c.UseLine())
		writeText(&b, text)
		if c.Example != "" {
			fmt.Fprintf(&b, "\n```\n%s\n```\n", dedent(c.Example))
		}
		if c.HasLocalFlags() && c.LocalNonPersistentFlags().HasFlags() {
			b.WriteString("\n")
			flagTable(&b, c.LocalNonPersistentFlags())
		}
	})
	return b.String()
}

// writeText writes help text; its indented lines become code.
func writeText(b *strings.Builder, text string) {
	code := false
	for line := range strings.Lines(text + "\n") {
		if indented := strings.HasPrefix(line, "  "); indented != code {
			code = indented
			if code && !strings.HasSuffix(b.String(), "\n\n") {
				b.WriteString("\n")
			}
			b.WriteString("```\n")
			if !code && strings.TrimSpace(line) != "" {
				b.WriteString("\n")
			}
		}
		b.WriteString(strings.TrimPrefix(line, "  "))
	}
	if code {
		b.WriteString("```\n")
	}
}

func dedent(s string) string { return strings.ReplaceAll(s[2:], "\n  ", "\n") }

func flagTable(b *strings.Builder, flags *pflag.FlagSet) {
	b.WriteString("| flag | meaning |\n|---|---|\n")
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name == "help" {
			return
		}
		name := "`--" + f.Name + "`"
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		fmt.Fprintf(b, "| %s | %s |\n", name, strings.ReplaceAll(f.Usage, "|", `\|`))
	})
}
