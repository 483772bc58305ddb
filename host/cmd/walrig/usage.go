package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/walrig/walrig/sdk/walimpls"
)

// group makes cmd a command that only holds others. Without a command it is a
// usage error, except for the root, which shows its help.
func group(cmd *cobra.Command) {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		names := commandNames(cmd)
		switch {
		case len(args) > 0:
			return usageError(helpHint(cmd), "unknown command %q%s", strings.TrimSpace(pathBelowRoot(cmd)+" "+args[0]), walimpls.Suggest(args[0], names))
		case !cmd.HasParent():
			return cmd.Help()
		}
		return usageError(helpHint(cmd), "%s needs a command: %s", cmd.Name(), strings.Join(names, ", "))
	}
	cmd.Args = cobra.ArbitraryArgs
	cmd.Annotations = map[string]string{groupMark: ""}
}

// groupMark tells the commands that group made from those that do something and
// have commands below them as well.
const groupMark = "group"

func isGroup(cmd *cobra.Command) bool {
	_, ok := cmd.Annotations[groupMark]
	return ok
}

func commandNames(cmd *cobra.Command) []string {
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return names
}

func pathBelowRoot(cmd *cobra.Command) string {
	_, rest, _ := strings.Cut(cmd.CommandPath(), " ")
	return rest
}

func helpHint(cmd *cobra.Command) string { return fmt.Sprintf("see `%s --help`", cmd.CommandPath()) }

// flagError makes pflag's errors usage errors, with the nearest flag's name.
func flagError(cmd *cobra.Command, err error) error {
	text := err.Error()
	if name, ok := strings.CutPrefix(text, "unknown flag: --"); ok {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		cmd.InheritedFlags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		text += walimpls.Suggest(name, names)
	}
	return usageError(helpHint(cmd), "%s", text)
}

// needs checks that a command got exactly the named arguments.
func needs(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return usageError(helpHint(cmd), "%s needs %s", pathBelowRoot(cmd), strings.Join(names[len(args):], " "))
		case len(args) > len(names):
			return usageError(helpHint(cmd), "%s does not take %q", pathBelowRoot(cmd), args[len(names)])
		}
		return nil
	}
}

// parseProperties reads the -p flags.
func parseProperties(pairs []string) (map[string]string, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	props := make(map[string]string, len(pairs))
	for _, p := range pairs {
		k, v, ok := strings.Cut(p, "=")
		if !ok || k == "" {
			return nil, usageError("write it like -p source=billing", "property %q is not key=value", p)
		}
		if _, twice := props[k]; twice {
			return nil, usageError("", "property %q is given twice", k)
		}
		props[k] = v
	}
	return props, nil
}
