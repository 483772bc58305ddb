package main

import (
	"runtime"

	"github.com/spf13/cobra"

	"github.com/walrig/walrig/host/config"
	"github.com/walrig/walrig/sdk/walimpls"
)

type versionJSON struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Go      string `json:"go"`
}

func (a *app) versionCmd() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Show the version", Args: needs(),
		RunE: func(*cobra.Command, []string) error {
			v := versionJSON{version, commit, runtime.Version()}
			if a.output == outputJSON {
				return a.out().json(v)
			}
			return a.out().printf("walrig %s (commit %s, %s)\n", v.Version, v.Commit, v.Go)
		},
	}
}

func (a *app) completionCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "completion",
		Short: "Write a shell's completion script",
		Long: `Write a shell's completion script to stdout.

  bash  source <(walrig completion bash)
  zsh   walrig completion zsh > "${fpath[1]}/_walrig"
  fish  walrig completion fish > ~/.config/fish/completions/walrig.fish

Names of channels and plugins are completed too, if a host answers.`,
	}
	group(cmd)
	for _, shell := range []string{"bash", "zsh", "fish"} {
		cmd.AddCommand(&cobra.Command{
			Use: shell, Short: "Write the completion script of " + shell, Args: needs(), DisableFlagsInUseLine: true,
			RunE: func(cmd *cobra.Command, _ []string) error {
				o := a.out()
				switch shell {
				case "bash":
					return cmd.Root().GenBashCompletionV2(o, true)
				case "zsh":
					return cmd.Root().GenZshCompletion(o)
				}
				return cmd.Root().GenFishCompletion(o, true)
			},
		})
	}
	return cmd
}

func (a *app) configCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Check and explain the host's configuration"}
	group(cmd)
	var in config.Input
	explain := &cobra.Command{
		Use:   "explain [KEY]",
		Short: "Show every key of the configuration, its value and where it comes from",
		Long: `Show every key of the host's configuration, its effective value, and where that comes from: the default, a line of the
file, a variable, or a flag. It takes the same flags as "serve" and checks the same things. With a KEY it shows that key
alone and what it does. Secrets are not shown.`,
		Example: `  walrig config explain --config walrig.yaml
  walrig config explain log.level`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return needs("KEY")(cmd, args)
			}
			cfg, err := a.loadConfig(cmd, in)
			if err != nil {
				return err
			}
			return a.explain(cfg, args)
		},
	}
	configFlags(explain, &in)
	cmd.AddCommand(explain)
	return cmd
}

// entryJSON is one line of `config explain -o json`.
type entryJSON struct {
	Key     string `json:"key"`
	Type    string `json:"type"`
	Value   string `json:"value"`
	Default string `json:"default"`
	Kind    string `json:"source_kind"`
	Source  string `json:"source"`
	Secret  bool   `json:"secret"`
	Doc     string `json:"doc"`
}

func (a *app) explain(cfg *config.Config, keys []string) error {
	entries := cfg.Explain()
	if len(keys) > 0 {
		var err error
		if entries, err = onlyKey(entries, keys[0]); err != nil {
			return err
		}
	}
	if a.output == outputJSON {
		return jsonLines(a.out(), convert(entries, func(e config.Entry) entryJSON {
			return entryJSON{e.Key, string(e.Type), e.Value, e.Default, string(e.Source.Kind), e.Source.Text, e.Secret, e.Doc}
		}))
	}
	if len(keys) > 0 {
		e := entries[0]
		return a.out().table([]string{"key", e.Key}, [][]string{
			{"value", e.Value}, {"from", e.Source.Text}, {"type", string(e.Type)}, {"default", e.Default}, {"meaning", e.Doc},
		})
	}
	return a.out().table([]string{"KEY", "VALUE", "FROM"}, convert(entries, func(e config.Entry) []string {
		return []string{e.Key, e.Value, e.Source.Text}
	}))
}

func onlyKey(entries []config.Entry, key string) ([]config.Entry, error) {
	names := make([]string, len(entries))
	for i, e := range entries {
		if names[i] = e.Key; e.Key == key {
			return entries[i : i+1], nil
		}
	}
	return nil, usageError("`walrig config explain` lists all keys", "no key is called %q%s", key, walimpls.Suggest(key, names))
}

// configFlags adds the flags of the configuration, from the table of keys.
func configFlags(cmd *cobra.Command, in *config.Input) {
	f := cmd.Flags()
	f.StringVar(&in.File, "config", "", "configuration file (YAML)")
	f.StringArrayVar(&in.Set, "set", nil, "set any key, as a.b=c; may be repeated")
	f.StringVar(&in.Backend, "backend", "", "backend of the default plugin")
	for _, k := range config.Keys() {
		if k.Flag() == "" {
			continue
		}
		if k.Type == config.TypeBool {
			f.Bool(k.Flag(), false, "set "+k.Name)
			continue
		}
		f.String(k.Flag(), "", "set "+k.Name+defaultText(k))
	}
}

func defaultText(k config.Key) string {
	if k.Default == "" {
		return ""
	}
	return " (default " + k.Default + ")"
}

// loadConfig loads the configuration from the file, the environment and the flags.
func (a *app) loadConfig(cmd *cobra.Command, in config.Input) (*config.Config, error) {
	in.Env, in.Flags = a.env, map[string]string{}
	for _, k := range config.Keys() {
		if f := cmd.Flags().Lookup(k.Flag()); k.Flag() != "" && f != nil && f.Changed {
			in.Flags[k.Name] = f.Value.String()
		}
	}
	if cmd.Flags().Changed("config") && in.File == "" {
		return nil, usageError("", "--config needs the name of a file")
	}
	if cmd.Flags().Changed("backend") && in.Backend == "" {
		return nil, usageError("", "--backend needs the name of a backend")
	}
	return config.Load(in)
}
