package pluginhost

import (
	"bytes"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// processAttr puts the plugin into a process group of its own and has the
// kernel kill it when the host dies, however that happens.
func processAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// closeInherited keeps files from the plugin that the host itself was started
// with: a shell's, a service manager's sockets. What Go opens is closed on exec
// anyway. It is best effort: kernels before 5.11 cannot do it.
func closeInherited() {
	_ = unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC)
}

// reap waits for the end of a group's leader, runs atEnd and reaps the leader.
// Until it is reaped its pid names its process group and nothing else, so atEnd
// can kill what is left of the group without hitting a stranger.
func reap(leader *os.Process, atEnd func()) *os.ProcessState {
	for errors.Is(unix.Waitid(unix.P_PID, leader.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
		continue
	}
	atEnd()
	state, _ := leader.Wait()
	return state
}

// groupAlive says whether a process group has a member that is not a zombie. Its
// zombies wait for init, which takes its time in many containers.
func groupAlive(pgid int) bool {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(stats) == 0 {
		return true
	}
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		// pid (name) state ppid pgrp …, where the name may have anything in it.
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		if len(fields) > 2 && fields[2] == strconv.Itoa(pgid) && fields[0] != "Z" && fields[0] != "X" {
			return true
		}
	}
	return false
}
