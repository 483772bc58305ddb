//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package rmq

import (
	"errors"
	"os"
)

// lockFile refuses: without a lock that dies with its process two of them
// could write to one store.
func lockFile(*os.File) (held bool, err error) {
	return false, errors.ErrUnsupported
}
