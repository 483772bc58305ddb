//go:build unix && !linux

package pluginhost

import (
	"os"
	"syscall"
)

// processAttr puts the plugin into a process group of its own. A host that
// dies is noticed by the end of the life-line pipe alone.
func processAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// closeInherited does nothing: these systems have no call for it.
func closeInherited() {}

// reap waits for the end of a group's leader, reaps it and runs atEnd. These
// systems cannot wait without reaping; the group's id stays taken while the
// group has members, which are all that atEnd is for.
func reap(leader *os.Process, atEnd func()) *os.ProcessState {
	state, _ := leader.Wait()
	atEnd()
	return state
}

// groupAlive says whether a process group has a member that is not a zombie, as
// far as that can be known.
func groupAlive(int) bool { return true }
