package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/walrig/walrig/plugins/rmq"
	"github.com/walrig/walrig/sdk/walimpls"
)

// beforeRepair ends the name of the copy that --repair makes.
const beforeRepair = ".before-repair"

// verifyJSON is the report of one store, and what was done about it.
type verifyJSON struct {
	rmq.Report
	Damaged  bool   `json:"damaged"`
	Repaired bool   `json:"repaired"`
	Copy     string `json:"copy"`
}

func (a *app) verifyCmd() *cobra.Command {
	var dir, copyTo string
	var repair bool
	cmd := &cobra.Command{
		Use:   "verify --data-dir DIR",
		Short: "Check the stores of the embedded backend, and repair them",
		Long: `Check every byte of the embedded backend's stores in a data folder (or in one store's folder): what is there, what is
damaged, and which records a repair would cut. It needs no host, and changes nothing; while a process uses the store it
fails. A damaged store makes the exit code 1.

With --repair a damaged store is copied first, to its folder's name with ".before-repair" or to --copy. Then the
records that cannot be read are given up: readers step over them, and everything else stays. Where a repair would
have to guess it does nothing.`,
		Example: `  walrig verify --data-dir /var/lib/walrig
  walrig verify --data-dir /var/lib/walrig --repair`,
		Args: needs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			stores, err := findStores(dir)
			if err != nil {
				return err
			}
			if copyTo != "" && (len(stores) > 1 || !repair) {
				return usageError("name one store's folder with --data-dir, and --repair", "--copy is the place of one store's copy")
			}
			damaged := 0
			for _, store := range stores {
				v := verifyJSON{Copy: copyTo}
				if v.Report, err = rmq.Verify(cmd.Context(), store); err != nil {
					return err
				}
				v.Damaged = v.Report.Damaged()
				if repair && v.Damaged {
					if v.Copy == "" {
						v.Copy = store + beforeRepair
					}
					if v.Report, err = rmq.Repair(cmd.Context(), store, v.Copy); err != nil {
						return err
					}
					v.Repaired = true
				} else {
					v.Copy = ""
				}
				if err := a.printVerified(v); err != nil {
					return err
				}
				if v.Damaged && !v.Repaired {
					damaged++
				}
			}
			if damaged > 0 {
				e := walimpls.Errorf(walimpls.CodeCorrupt, "", "%s damaged", countText(int64(damaged), "store"))
				e.Hint = "restore a backup, or let --repair give up the records named above"
				return e
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "data-dir", "", "the host's data folder, or one store's folder (required)")
	cmd.Flags().BoolVar(&repair, "repair", false, "give up the records that cannot be read, after a copy was made")
	cmd.Flags().StringVar(&copyTo, "copy", "", "folder for the copy that --repair makes; it must not exist")
	return cmd
}

func (a *app) backupCmd() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "backup --data-dir DIR TO",
		Short: "Copy a store of the embedded backend while it is in use",
		Long: `Copy a store of the embedded backend to a folder that does not exist yet, without stopping anything. The copy holds
all that was acknowledged before the command began, and is checked as "walrig verify" does. To restore it, stop the
host, put the copy in the place of the store's folder, and start the host.

The host's catalog (terms, checkpoints) is not part of it: a host with another catalog takes the channels over with
--adopt.`,
		Example: `  walrig backup --data-dir /var/lib/walrig /backup/walrig-rmq`,
		Args:    needs("TO"),
		RunE: func(cmd *cobra.Command, args []string) error {
			stores, err := findStores(dir)
			if err != nil {
				return err
			}
			if len(stores) > 1 {
				return usageError("name one of them with --data-dir", "%q holds several stores: %q", dir, stores)
			}
			report, err := rmq.Backup(cmd.Context(), stores[0], args[0])
			if err != nil {
				return err
			}
			if a.output == outputJSON {
				return a.out().json(verifyJSON{Report: report})
			}
			return a.out().printf("copied %s to %s: %s\n", stores[0], args[0], countText(int64(len(report.Channels)), "channel"))
		},
	}
	cmd.Flags().StringVar(&dir, "data-dir", "", "the host's data folder, or one store's folder (required)")
	return cmd
}

// findStores returns the folders of rmq stores: dir itself, or those that a
// host with that data folder makes.
func findStores(dir string) ([]string, error) {
	if dir == "" {
		return nil, usageError("name the folder", "--data-dir is required")
	}
	isStore := func(path string) bool {
		_, err := os.Stat(filepath.Join(path, "FORMAT"))
		return err == nil
	}
	if isStore(dir) {
		return []string{filepath.Clean(dir)}, nil
	}
	var found []string
	for _, pattern := range []string{"rmq", "rmq-*"} {
		paths, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return nil, usageError("", "the folder %q: %v", dir, err)
		}
		found = append(found, paths...)
	}
	found = slices.DeleteFunc(found, func(path string) bool { return !isStore(path) || strings.HasSuffix(path, beforeRepair) })
	if len(found) == 0 {
		return nil, usageError("name a host's data folder, or the folder in a plugin's key dir", "%q holds no store of rmq", dir)
	}
	return found, nil
}

func (a *app) printVerified(v verifyJSON) error {
	o := a.out()
	if a.output == outputJSON {
		return o.json(v)
	}
	if err := o.printf("store %s, format %d\n", v.Dir, v.Format); err != nil {
		return err
	}
	var rows [][]string
	for _, g := range v.Segments {
		rows = append(rows, []string{filepath.Base(g.File), g.State, bytesText(g.Bytes), bytesText(g.Used), strconv.FormatInt(g.Records, 10)})
	}
	if err := o.table([]string{"FILE", "STATE", "SIZE", "USED", "RECORDS"}, rows); err != nil {
		return err
	}
	rows = nil
	for _, c := range v.Channels {
		rows = append(rows, []string{c.Channel, strconv.FormatUint(c.Earliest, 10), strconv.FormatUint(c.Latest, 10), fmt.Sprintf("%d.%d", c.Term, c.Incarnation)})
	}
	if err := o.table([]string{"CHANNEL", "EARLIEST", "LATEST", "TERM"}, rows); err != nil {
		return err
	}
	if v.TornTail >= 0 {
		if err := o.printf("a torn tail at position %d of the active segment, never acknowledged: the next open cuts it off\n", v.TornTail); err != nil {
			return err
		}
	}
	for _, p := range v.Problems {
		where := ""
		if p.Channel != "" {
			where = fmt.Sprintf(", records %d to %d of %s", p.First, p.Last, p.Channel)
		}
		if err := o.printf("damaged: %s at position %d: %s%s\n", p.File, p.Position, p.Why, where); err != nil {
			return err
		}
	}
	for _, p := range v.Residue {
		if err := o.printf("damaged, and not needed by anything: %s at position %d: %s\n", p.File, p.Position, p.Why); err != nil {
			return err
		}
	}
	verb := "a repair would cut"
	if v.Repaired {
		verb = "cut"
	}
	for _, c := range v.Cuts {
		if err := o.printf("%s %s of %s: %d to %d\n", verb, countText(int64(c.Last-c.First+1), "record"), c.Channel, c.First, c.Last); err != nil {
			return err
		}
	}
	switch {
	case v.Repaired:
		return o.printf("repaired; the store as it was is in %s\n", v.Copy)
	case v.Damaged && !v.Repairable:
		return o.printf("a repair would have to guess: restore a backup\n")
	case !v.Damaged:
		return o.printf("ok\n")
	}
	return nil
}
