package brokers

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// node is one broker process of a room.
type node struct {
	room *room
	dir  string
	env  []string // the recipe's settings, ports among them
}

func (n *node) start() error {
	_, err := n.room.script.run(bootTimeout+time.Minute, n.env, "start", n.dir)
	return err
}

// Kill ends the broker with SIGKILL and waits until the process is gone. What it
// acknowledged must be there after Restart.
func (n *node) Kill() error {
	_, err := n.room.script.run(time.Minute, n.env, "kill", n.dir)
	return err
}

// Stop ends the broker with SIGTERM, waits for it, and kills it if it does not
// end within half a minute.
func (n *node) Stop() error {
	_, err := n.room.script.run(stopTimeout+time.Minute, n.env, "stop", n.dir)
	return err
}

// Restart starts the broker again on its data and on the same ports, and waits
// until it answers. One that still runs is stopped first.
func (n *node) Restart() error {
	if err := n.Stop(); err != nil {
		return err
	}
	return n.start()
}

// Pid returns the process id of the running broker.
func (n *node) Pid() (int, error) {
	out, err := n.room.script.run(time.Minute, n.env, "pid", n.dir)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(out)
}

// Pause stops the broker's process with SIGSTOP: its connections stay open and
// nothing is answered, until Resume or Kill.
func (n *node) Pause() error { return n.signal(syscall.SIGSTOP) }

// Resume lets a paused broker go on.
func (n *node) Resume() error { return n.signal(syscall.SIGCONT) }

func (n *node) signal(sig syscall.Signal) error {
	pid, err := n.Pid() // checked by its command line
	if err != nil {
		return err
	}
	return syscall.Kill(pid, sig)
}

// Log returns the end of what the broker wrote to its log.
func (n *node) Log() string {
	for _, name := range []string{"broker.log", "log"} {
		if b, err := os.ReadFile(filepath.Join(n.dir, name)); err == nil {
			return string(b[max(0, len(b)-6000):])
		}
	}
	return ""
}

// closeWith ends the room's brokers with the test, and shows their logs if it failed.
func closeWith(t testing.TB, r *room, nodes ...*node) {
	t.Cleanup(func() {
		if t.Failed() {
			for _, n := range nodes {
				t.Logf("the end of the log of %s:\n%s", n.dir, n.Log())
			}
		}
		r.close()
	})
}

// bootFresh starts what boot describes on free ports. A port may be taken
// between the choice and the start, so it tries again with others.
func bootFresh(ports int, boot func(ports []int) error) error {
	const attempts = 3
	for i := 1; ; i++ {
		chosen, err := freePorts(ports)
		if err != nil {
			return err
		}
		err = boot(chosen)
		if err == nil || i == attempts || !portTaken(err) {
			return err
		}
	}
}

func portTaken(err error) bool {
	for _, sign := range []string{"Address already in use", "BindException", " is taken"} {
		if strings.Contains(err.Error(), sign) {
			return true
		}
	}
	return false
}

// freePorts returns n different free loopback ports below the range that the
// system takes outgoing connections' ports from, so that none of those takes one
// while a broker is down.
func freePorts(n int) ([]int, error) {
	ports := make([]int, 0, n)
	for range 1000 {
		if len(ports) == n {
			return ports, nil
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 20000+rand.IntN(12000)))
		if err != nil {
			continue
		}
		// Open until all are chosen, so that none is chosen twice.
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return nil, fmt.Errorf("found no %d free ports between 20000 and 32000", n)
}

func local(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// answers tells whether something accepts connections at addr.
func answers(addr string) bool {
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return false
	}
	c.Close()
	return true
}

// lines writes settings as the brokers' configuration files want them.
func lines(settings ...map[string]string) string {
	var b strings.Builder
	for _, m := range settings {
		keys := make([]string, 0, len(m))
		for k := range m {
			keys = append(keys, k)
		}
		sort.Strings(keys)
		for _, k := range keys {
			fmt.Fprintf(&b, "%s=%s\n", k, strings.ReplaceAll(m[k], "\n", "\\\n"))
		}
	}
	return b.String()
}
