package pluginhost

import (
	"errors"
	"os"
	"runtime"
	"syscall"
	"time"
)

// launcher starts processes from one OS thread that lives as long as it does.
// The parent-death signal of a child follows the thread that forked it, so a
// plugin must not be forked from a thread that the runtime may end.
type launcher struct {
	requests chan launchRequest
	done     chan struct{}
}

type launchRequest struct {
	path  string
	argv  []string
	attr  *os.ProcAttr
	reply chan<- launchReply
}

type launchReply struct {
	proc *os.Process
	err  error
}

func newLauncher() *launcher {
	l := &launcher{requests: make(chan launchRequest), done: make(chan struct{})}
	go l.run()
	return l
}

func (l *launcher) run() {
	defer close(l.done)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for r := range l.requests {
		proc, err := startProcess(r)
		r.reply <- launchReply{proc, err}
	}
}

// A file that another goroutine of any process has just written may still be
// open for writing in a child that was forked at that moment and has not
// executed yet; that passes within milliseconds.
const (
	busyRetries = 6
	busyWait    = 10 * time.Millisecond
)

func startProcess(r launchRequest) (proc *os.Process, err error) {
	closeInherited()
	wait := busyWait
	for range busyRetries {
		proc, err = os.StartProcess(r.path, r.argv, r.attr)
		if !errors.Is(err, syscall.ETXTBSY) {
			return proc, err
		}
		time.Sleep(wait)
		wait *= 2
	}
	return proc, err
}

// start starts a process. It must not be called after close.
func (l *launcher) start(path string, argv []string, attr *os.ProcAttr) (*os.Process, error) {
	reply := make(chan launchReply, 1)
	l.requests <- launchRequest{path, argv, attr, reply}
	r := <-reply
	return r.proc, r.err
}

// close ends the thread. Every process must have ended before: the signal for
// a lost parent would kill the others.
func (l *launcher) close() {
	close(l.requests)
	<-l.done
}
