package main

import (
	"context"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/walrig/walrig/sdk/client"
)

// txnJSON is `txn begin -o json`.
type txnJSON struct {
	TxnID   string `json:"txn_id"`
	Channel string `json:"channel"`
	Expires string `json:"expires"`
}

// txnEndJSON is `txn commit|rollback -o json`; the place is the commit's or
// rollback's own record.
type txnEndJSON struct {
	TxnID      string `json:"txn_id"`
	Channel    string `json:"channel"`
	Outcome    string `json:"outcome"`
	ID         string `json:"id"`
	TimeTick   string `json:"time_tick"`
	Term       int64  `json:"term"`
	Checkpoint string `json:"checkpoint"`
}

func (a *app) txnCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "txn",
		Short: "Begin, commit and roll back transactions",
		Long: `Begin, commit and roll back transactions.

Records of a transaction ("append --txn ID") are read when it is committed: all of them, once, at the commit's place.
A transaction lives in the host, across clients and connections and the backend's restarts, but not across terms. One to
which nothing is appended for its keepalive is rolled back.`,
		Example: `  txn=$(walrig txn begin orders)
  printf 'debit\ncredit\n' | walrig append orders --txn "$txn"
  walrig txn commit orders "$txn"`,
	}
	group(cmd)
	cmd.AddCommand(a.txnBeginCmd(), a.txnEndCmd("commit", "Commit a transaction", true), a.txnEndCmd("rollback", "Roll a transaction back", false))
	return cmd
}

func (a *app) txnBeginCmd() *cobra.Command {
	var opt client.TxnOptions
	cmd := &cobra.Command{
		Use: "begin CHANNEL", Short: "Begin a transaction, print its id", Args: needs("CHANNEL"), ValidArgsFunction: a.completeChannel,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				txn, err := c.BeginTxn(ctx, args[0], opt)
				if err != nil {
					return err
				}
				id := strconv.FormatUint(txn.ID(), 10)
				if a.output == outputJSON {
					return a.out().json(txnJSON{id, args[0], txn.Expires().UTC().Format(time.RFC3339Nano)})
				}
				return a.out().printf("%s\n", id)
			})
		},
	}
	cmd.Flags().DurationVar(&opt.Keepalive, "keepalive", 0, "how long it lives without a record (default: the host's, 10s)")
	cmd.Flags().StringVar(&opt.VChannel, "vchannel", "", "the virtual channel that it is on (default: all)")
	return cmd
}

func (a *app) txnEndCmd(verb, short string, commit bool) *cobra.Command {
	return &cobra.Command{
		Use: verb + " CHANNEL TXN", Short: short, Args: needs("CHANNEL", "TXN"), ValidArgsFunction: a.completeChannel,
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := parseTxn(args[1])
			if err != nil {
				return err
			}
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				end := c.Txn(args[0], id).Rollback
				if commit {
					end = c.Txn(args[0], id).Commit
				}
				r, err := end(ctx)
				if err != nil {
					return err
				}
				if a.output == outputJSON {
					return a.out().json(txnEndJSON{
						TxnID: args[1], Channel: args[0], Outcome: r.State.String(), ID: r.ID,
						TimeTick: strconv.FormatUint(uint64(r.TimeTick), 10), Term: r.Term, Checkpoint: r.Checkpoint,
					})
				}
				done := "rolled back"
				if commit {
					done = "committed"
				}
				return a.out().printf("%s transaction %s of %s\n", done, args[1], args[0])
			})
		},
	}
}

// parseTxn reads a transaction's id as "txn begin" prints it.
func parseTxn(text string) (uint64, error) {
	id, err := strconv.ParseUint(text, 10, 64)
	if err != nil || id == 0 {
		return 0, usageError("\"walrig txn begin CHANNEL\" prints one", "%q is not the id of a transaction", text)
	}
	return id, nil
}
