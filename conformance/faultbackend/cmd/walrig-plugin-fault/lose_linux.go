package main

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// loseConnections shuts down every socket that has a peer, and so the host's
// connections. Listening sockets stay: the process lives on and can be reached
// again, as after a broken network and unlike after a crash.
func loseConnections() {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		os.Exit(1) // the connection goes with the process
	}
	for _, entry := range entries {
		fd, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if _, err := unix.Getpeername(fd); err == nil {
			_ = unix.Shutdown(fd, unix.SHUT_RDWR)
		}
	}
}
