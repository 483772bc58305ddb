package pluginhost

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-plugin/runner"
)

// Bounds of the end of a process.
const (
	// killWait bounds the wait for a killed process to be gone. Only a process
	// that hangs inside the kernel takes longer.
	killWait = 2 * time.Second
	// groupWait bounds the wait for the rest of its group to be gone.
	groupWait = time.Second
	// pipeWait bounds the wait for the end of its pipes: a grandchild that left
	// the group may hold them open for ever.
	pipeWait = 500 * time.Millisecond
)

var errKilled = errors.New("the process was killed before it was started")

// process runs one plugin process; it is the runner that go-plugin is given.
// The process leads a group of its own, has its own pipes for stdout and stderr,
// and its stdin is the life-line: a pipe of which only the host has the other
// end. However the process ends, its whole group is killed and it is reaped.
type process struct {
	launcher *launcher
	image    *image
	env      []string
	out      *output
	dir      string // the socket folder

	handshakeText *handshakeReader
	ended         chan struct{} // closed when the process has ended
	exited        chan struct{} // closed when it is reaped, too, and its output is read

	mu        sync.Mutex // guards what follows
	begun     bool       // Start was called
	killed    bool       // Kill was called
	launchErr error      // why there is no proc
	proc      *os.Process
	reaped    bool // the pid is not ours any more
	byItself  bool // it ended before anybody called Kill
	lifeline  *os.File
	shake     *handshake
	state     *os.ProcessState
}

var _ runner.Runner = (*process)(nil)

func newProcess(l *launcher, img *image, out *output) *process {
	return &process{launcher: l, image: img, out: out, handshakeText: newHandshakeReader(), ended: make(chan struct{}), exited: make(chan struct{})}
}

// Start implements runner.Runner. A process that was killed is not started.
func (p *process) Start(ctx context.Context) error {
	p.mu.Lock()
	if p.killed || p.begun {
		p.mu.Unlock()
		return errKilled
	}
	p.begun = true
	p.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	// The lock is not held here: a system that hangs in the launch (a dead
	// network file system) must not hold up Kill.
	if err := p.launch(); err != nil {
		p.mu.Lock()
		p.launchErr = err
		p.mu.Unlock()
		return err
	}
	p.mu.Lock()
	killed := p.killed
	p.mu.Unlock()
	if killed {
		_ = p.signalGroup(syscall.SIGKILL)
		return errKilled
	}
	return nil
}

func (p *process) launch() error {
	var opened []*os.File
	closeAll := func() {
		for _, f := range opened {
			_ = f.Close()
		}
	}
	pipe := func() (r, w *os.File, err error) {
		r, w, err = os.Pipe()
		if err == nil {
			opened = append(opened, r, w)
		}
		return r, w, err
	}
	stdin, lifeline, err1 := pipe()
	stdout, stdoutW, err2 := pipe()
	stderr, stderrW, err3 := pipe()
	path, extra, err4 := p.image.executable(p.dir)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		closeAll()
		// Its errno is not the binary's, and must not be taken for it.
		return errors.New("its pipes and links cannot be made: " + err.Error())
	}
	proc, err := p.launcher.start(path, []string{p.image.path}, &os.ProcAttr{
		Env: p.env, Files: append([]*os.File{stdin, stdoutW, stderrW}, extra...), Sys: processAttr(),
	})
	if err != nil {
		closeAll()
		return err
	}
	for _, f := range []*os.File{stdin, stdoutW, stderrW} {
		_ = f.Close()
	}
	p.mu.Lock()
	p.proc, p.lifeline = proc, lifeline
	p.mu.Unlock()
	go p.supervise(stdout, stderr)
	return nil
}

// supervise reads the process's output until it ends, and reaps it.
func (p *process) supervise(stdout, stderr *os.File) {
	var reading sync.WaitGroup
	reading.Go(func() {
		s := lineSplitter{}
		s.fn = func(line []byte, cut int) { p.stdoutLine(line, cut, s.end) }
		s.drain(stdout)
		// go-plugin kills the process when it gets no handshake. If it is ending by
		// itself, that must not change how it ended.
		select {
		case <-p.ended:
		case <-time.After(pipeWait):
		}
		p.handshakeText.deliver("")
	})
	reading.Go(func() {
		s := lineSplitter{fn: p.out.stderr}
		s.drain(stderr)
	})
	state := reap(p.proc, func() {
		_ = p.signalGroup(syscall.SIGKILL)
		p.mu.Lock()
		p.reaped, p.byItself = true, !p.killed
		p.mu.Unlock()
		close(p.ended)
	})
	awaitGroup(p.proc.Pid)
	for _, f := range []*os.File{stdout, stderr} {
		_ = f.SetReadDeadline(time.Now().Add(pipeWait))
	}
	reading.Wait()
	_ = stdout.Close()
	_ = stderr.Close()
	p.mu.Lock()
	p.state = state
	_ = p.lifeline.Close()
	p.mu.Unlock()
	close(p.exited)
}

// awaitGroup waits until no member of a killed group lives, within bounds. If
// this process inherited members (it runs as init), it reaps them.
func awaitGroup(pgid int) {
	deadline := time.Now().Add(groupWait)
	for wait := time.Millisecond; syscall.Kill(-pgid, 0) == nil; wait = min(2*wait, 50*time.Millisecond) {
		if n, _ := syscall.Wait4(-pgid, nil, syscall.WNOHANG, nil); n > 0 {
			continue
		}
		if !groupAlive(pgid) || time.Now().After(deadline) {
			return
		}
		time.Sleep(wait)
	}
}

// stdoutLine looks for the handshake, at the end of a line that was cut, too;
// everything else on stdout is only logged.
func (p *process) stdoutLine(line []byte, cut int, end []byte) {
	p.mu.Lock()
	shaken := p.shake != nil
	p.mu.Unlock()
	if shaken {
		p.out.stdout(line, cut)
		return
	}
	searched := line
	if cut > 0 {
		searched = end
	}
	h, ok := parseHandshake(searched)
	if !ok {
		p.out.beforeHandshake(line, cut)
		return
	}
	p.mu.Lock()
	p.shake = &h
	p.mu.Unlock()
	p.handshakeText.deliver(h.line)
}

// signalGroup signals every member of the group, if the group is still ours.
func (p *process) signalGroup(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.proc == nil || p.reaped {
		return nil
	}
	return syscall.Kill(-p.proc.Pid, sig)
}

// Kill implements runner.AttachedRunner: it kills the process group and waits,
// within bounds, until it is gone. Before Start it makes Start fail. It may be
// called any number of times, from anywhere.
func (p *process) Kill(ctx context.Context) error {
	p.mu.Lock()
	p.killed = true
	started := p.proc != nil
	p.mu.Unlock()
	if !started {
		p.handshakeText.deliver("")
		return nil
	}
	err := p.signalGroup(syscall.SIGKILL)
	timer := time.NewTimer(killWait)
	defer timer.Stop()
	select {
	case <-p.exited:
		return nil
	case <-ctx.Done():
		return errors.Join(ctx.Err(), err)
	case <-timer.C:
		return errors.Join(errors.New("the process was killed and does not end; it hangs in the kernel"), err)
	}
}

// Wait implements runner.AttachedRunner.
func (p *process) Wait(ctx context.Context) error {
	select {
	case <-p.exited:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// started says whether a process was ever started.
func (p *process) started() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.proc != nil
}

// launchError returns why the system did not start the process, nil if it did.
func (p *process) launchError() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.launchErr
}

// cutLifeline ends the plugin's stdin, which tells it to go.
func (p *process) cutLifeline() {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.lifeline.Close()
}

// exit says how the process ended, such as "exit status 3" or "signal: killed";
// "" if it did not. byItself says that it was not the host that killed it.
func (p *process) exit() (text string, byItself bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state == nil {
		return "", false
	}
	ws, ok := p.state.Sys().(syscall.WaitStatus)
	return p.state.String(), p.byItself || !ok || !ws.Signaled() || ws.Signal() != syscall.SIGKILL
}

// seen returns the handshake, nil if there was none.
func (p *process) seen() *handshake {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.shake
}

// pid returns the process id, 0 before the start and after the end.
func (p *process) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.proc == nil || p.reaped {
		return 0
	}
	return p.proc.Pid
}

// ID implements runner.AttachedRunner.
func (p *process) ID() string {
	if pid := p.pid(); pid != 0 {
		return strconv.Itoa(pid)
	}
	return ""
}

// Name implements runner.Runner.
func (p *process) Name() string { return filepath.Base(p.image.path) }

// Stdout implements runner.Runner: the handshake and nothing else.
func (p *process) Stdout() io.ReadCloser { return p.handshakeText }

// Stderr implements runner.Runner: nothing, it is read here.
func (p *process) Stderr() io.ReadCloser { return io.NopCloser(strings.NewReader("")) }

// Diagnose implements runner.Runner; our own errors say more.
func (p *process) Diagnose(context.Context) string { return "" }

// PluginToHost and HostToPlugin implement runner.AddrTranslator.
func (p *process) PluginToHost(network, addr string) (string, string, error) {
	return network, addr, nil
}

// HostToPlugin implements runner.AddrTranslator.
func (p *process) HostToPlugin(network, addr string) (string, string, error) {
	return network, addr, nil
}
