package mutants

import (
	"context"
	"errors"
	"slices"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// refusing is an append hook that changes the error.
func refusing(f func(error) error) func(*wal, context.Context, []message.Message) ([]message.ID, error) {
	return func(w *wal, ctx context.Context, batch []message.Message) ([]message.ID, error) {
		ids, err := w.WAL.Append(ctx, batch)
		return ids, f(err)
	}
}

var limitMutants = []Mutant{
	{Name: "cuts-payloads", Clause: "WAL-LIM-001", Source: "S-02", Defect: "payloads above 1 MiB are cut there, silently",
		hooks: only(hooks{append: func(w *wal, ctx context.Context, batch []message.Message) ([]message.ID, error) {
			batch = slices.Clone(batch)
			for i := range batch {
				if n := len(batch[i].Payload); n > 1<<20 && batch[i].Size() <= limits.MaxMessageBytes {
					batch[i].Payload = batch[i].Payload[:1<<20]
				}
			}
			return w.WAL.Append(ctx, batch)
		}})},
	{Name: "claims-a-larger-limit", Clause: "WAL-LIM-001", Source: "M-14", Defect: "MaxMessageBytes is declared twice as large as it is",
		hooks: only(hooks{describe: func(d *walimpls.Description) { d.Limits.MaxMessageBytes *= 2 }})},
	{Name: "too-large-is-retryable", Clause: "WAL-LIM-002", Source: "M-14", Defect: "ErrTooLarge says that a retry can help",
		hooks: only(hooks{append: refusing(func(err error) error {
			var e *walimpls.Error
			if errors.As(err, &e) && e.Code == walimpls.CodeTooLarge {
				e.Retryable = true
			}
			return err
		})})},
	{Name: "takes-too-large", Clause: "WAL-LIM-002", Source: "M-14", Defect: "a record above the limit is acknowledged, and stored without its payload",
		hooks: only(hooks{append: func(w *wal, ctx context.Context, batch []message.Message) ([]message.ID, error) {
			if len(batch) == 1 && len(batch[0].Payload) > limits.MaxMessageBytes {
				return w.WAL.Append(ctx, []message.Message{{Type: message.TypeData}})
			}
			return w.WAL.Append(ctx, batch)
		}})},
	{Name: "band-below-the-limit", Clause: "WAL-LIM-003", Source: "M-14", Defect: "sizes from 150 to 50 bytes below the limit are refused",
		hooks: only(hooks{append: func(w *wal, ctx context.Context, batch []message.Message) ([]message.ID, error) {
			for i := range batch {
				if n := limits.MaxMessageBytes - batch[i].Size(); n >= 50 && n <= 150 {
					return nil, walimpls.Errorf(walimpls.CodeTooLarge, w.channel.Name, "a record of %d bytes", batch[i].Size())
				}
			}
			return w.WAL.Append(ctx, batch)
		}})},
	{Name: "one-too-large-refuses-all", Clause: "WAL-LIM-004", Defect: "a record that is too large takes its neighbours with it",
		hooks: only(hooks{append: func(w *wal, ctx context.Context, batch []message.Message) ([]message.ID, error) {
			for i := range batch {
				if batch[i].Size() > limits.MaxMessageBytes {
					return nil, walimpls.Errorf(walimpls.CodeTooLarge, w.channel.Name, "a record of %d bytes", batch[i].Size())
				}
			}
			return w.WAL.Append(ctx, batch)
		}})},
}

var errorMutants = []Mutant{
	{Name: "errors-without-channel", Clause: "WAL-ERR-001", Defect: "errors do not say which channel they are about",
		hooks: only(hooks{append: refusing(func(err error) error {
			var e *walimpls.Error
			if errors.As(err, &e) {
				e.Channel = ""
			}
			return err
		})})},
	{Name: "lost-without-bounds", Clause: "WAL-ERR-002", Source: "M-22", Defect: "PositionLostError carries no ids",
		hooks: only(hooks{read: func(w *wal, ctx context.Context, opt walimpls.ReadOptions) (*scanner, error) {
			s, err := w.read(ctx, opt)
			var lost *walimpls.PositionLostError
			if errors.As(err, &lost) {
				lost.Earliest, lost.Latest = "", ""
			}
			return s, err
		}})},
	{Name: "refused-with-id", Clause: "WAL-ERR-003", Defect: "a record that is not stored has an id in its outcome",
		hooks: only(hooks{append: refusing(func(err error) error {
			var batch *walimpls.BatchError
			if errors.As(err, &batch) {
				for i := range batch.Outcomes {
					if batch.Outcomes[i].State == walimpls.NotStored {
						batch.Outcomes[i].ID = message.Uint64ID(1)
					}
				}
			}
			return err
		})})},
}
