package rmq

import (
	"context"
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/walrig/walrig/sdk/walimpls"
)

// backupTries bounds how often a copy is begun anew because the store gave a
// segment back while it was being copied.
const backupTries = 5

// Backup copies the store in dir to a folder that does not exist yet, while it
// is in use or not, without stopping it. The copy is checked as Verify does; it
// holds everything that was acknowledged before Backup began, and some of what
// came later, always a beginning of it. It is a store like any other: let a
// configuration name it, or put it in the lost one's place.
//
// Segments are written at the end only, so a copy that is torn there is one
// that a power loss might have left. A segment that was truncated and used
// again meanwhile makes the check fail, and the copy is made anew.
func Backup(ctx context.Context, dir, to string) (Report, error) {
	return backup(ctx, vfs.Default, dir, to)
}

func backup(ctx context.Context, f vfs.FS, dir, to string) (Report, error) {
	ready, err := inspectFolder(f, dir)
	if err != nil {
		return Report{}, err
	}
	if !ready {
		return Report{}, foreignError(dir, "there is none")
	}
	if _, err := f.Stat(to); err == nil {
		return Report{}, walimpls.Errorf(walimpls.CodeAlreadyExists, "", "backup: %q exists already", to)
	}
	var r Report
	for range backupTries {
		if err = copyFolder(ctx, f, dir, to); err == nil {
			r, _, err = verify(ctx, f, to)
		}
		if err == nil && !r.Damaged() {
			return r, nil
		}
		if err == nil {
			err = fmt.Errorf("the copy is damaged, because the store is, or because it changes faster than it can be copied: %s", r.Problems[0].Why)
		}
		if removeErr := f.RemoveAll(to); removeErr != nil {
			return r, storeError("", fmt.Sprintf("remove the unfinished copy %q", to), removeErr)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return r, storeError("", fmt.Sprintf("backup of %q", dir), err)
}
