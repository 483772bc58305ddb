package rmq

import (
	"context"
	"errors"
	"io/fs"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

const hintReopen = "open the channel again with the next incarnation; that settles what is unknown"

// storeError types an error of the file system, or of what it holds. what says what
// was being done, with the path where there is one.
func storeError(channel, what string, err error) *walimpls.Error {
	code, hint := walimpls.CodeUnavailable, ""
	retryable := true
	switch {
	case vfs.IsNoSpaceError(err):
		code, hint = walimpls.CodeNoSpace, "free space on the file system, or truncate"
	case errors.Is(err, errDamaged), errors.Is(err, message.ErrBadRecord):
		code, retryable = walimpls.CodeCorrupt, false
		hint = "walrig verify --data-dir says what is damaged, and what a repair would cut"
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ENAMETOOLONG):
		code, retryable = walimpls.CodeInvalidArgument, false
		hint = `the key "dir" must name a folder that this user can write to`
	case errors.Is(err, errors.ErrUnsupported):
		code, retryable = walimpls.CodeUnsupported, false
	}
	e := walimpls.Errorf(code, channel, "%s: %w", what, err)
	e.Hint, e.Retryable = hint, retryable
	return e
}

// gaveUp is the error of a call whose context ended before anything of it was
// handed to the store.
func gaveUp(channel, what string, err error) *walimpls.Error {
	code := walimpls.CodeCanceled
	if errors.Is(err, context.DeadlineExceeded) {
		code = walimpls.CodeTimeout
	}
	return walimpls.Errorf(code, channel, "%s: %w", what, err)
}

func unknownOutcome(channel, why string) *walimpls.Error {
	e := walimpls.Errorf(walimpls.CodeUnknownOutcome, channel, "append: %s; the records may or may not be stored", why)
	e.Hint = hintReopen
	return e
}

func closedError(channel, what string) *walimpls.Error {
	return walimpls.Errorf(walimpls.CodeClosed, channel, "%s: the handle is closed", what)
}

func droppedError(channel, what string) *walimpls.Error {
	return walimpls.Errorf(walimpls.CodeNotFound, channel, "%s: the log was dropped", what)
}

func missingError(channel string) *walimpls.Error {
	return walimpls.Errorf(walimpls.CodeNotFound, channel, "open read-only: there is no such log")
}

// failedError is what every call gets after the store failed: nothing is
// acknowledged any more. A full disk keeps its code, so that callers can tell.
func failedError(channel string, cause error) *walimpls.Error {
	code := walimpls.CodeUnavailable
	if vfs.IsNoSpaceError(cause) {
		code = walimpls.CodeNoSpace
	}
	e := walimpls.Errorf(code, channel, "the store failed and takes nothing more: %w", cause)
	e.Hint = hintReopen
	return e
}

func isNotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }
