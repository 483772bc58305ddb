//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package faultbackend

import (
	"errors"
	"os"
)

// tryLock refuses: without a lock two processes would ruin each other's file.
func tryLock(*os.File) (bool, error) {
	return false, errors.New("file locks are not supported on this system; run without a file")
}
