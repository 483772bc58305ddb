package pluginhost

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// processAttr puts the plugin into a process group of its own and has the
// kernel kill it when the host dies, however that happens.
func processAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// reap waits for the end of a group's leader, runs atEnd and reaps the leader.
// Until it is reaped its pid names its process group and nothing else, so atEnd
// can kill what is left of the group without hitting a stranger.
func reap(leader *os.Process, atEnd func()) *os.ProcessState {
	for unix.Waitid(unix.P_PID, leader.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
	atEnd()
	state, _ := leader.Wait()
	return state
}
