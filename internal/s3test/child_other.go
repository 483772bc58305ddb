//go:build !linux

package s3test

import "syscall"

// childAttr has nothing to offer here: a test that is killed leaves its server.
func childAttr() *syscall.SysProcAttr { return nil }
