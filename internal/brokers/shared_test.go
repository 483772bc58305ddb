package brokers

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestTwoProcessesShareOneKafkaWhichDiesWhenBothWereKilled(t *testing.T) {
	t.Parallel()
	needBrokers(t, kafkaRecipe, "Kafka")
	tmp := t.TempDir()
	first, second := startHelper(t, "shared kafka", tmp), startHelper(t, "shared kafka", tmp)
	a, b := first.addr(t), second.addr(t)
	if a != b {
		t.Fatalf("two brokers: %s and %s", a, b)
	}
	// Who comes later joins too, and its end harms nobody.
	third := startHelper(t, "shared kafka", tmp)
	if c := third.addr(t); c != a {
		t.Fatalf("a third process got %s, not %s", c, a)
	}
	third.finish(t)
	first.kill()
	if n := brokersOf(t, tmp); n != 1 {
		t.Fatalf("%d brokers run for the second process", n)
	}
	writeAndRead(t, []string{b}, 1)
	second.kill()
	awaitNothing(t, tmp)
}

func TestSharedBrokerThatDiedIsStartedAgainForTheNextUser(t *testing.T) {
	t.Parallel()
	needBrokers(t, kafkaRecipe, "Kafka")
	tmp := t.TempDir()
	first := startHelper(t, "shared kafka", tmp)
	addr := first.addr(t)
	topic := writeAndRead(t, []string{addr}, 1)
	rooms, err := filepath.Glob(filepath.Join(tmp, "walrig-brokers-*", "kafka-*"))
	if err != nil || len(rooms) != 1 {
		t.Fatalf("rooms %v, %v", rooms, err)
	}
	died := &node{room: &room{dir: rooms[0], script: script{recipe: kafkaRecipe, dir: rooms[0]}}, dir: filepath.Join(rooms[0], "nodes", "1")}
	if err := died.Kill(); err != nil {
		t.Fatal(err)
	}
	second := startHelper(t, "shared kafka", tmp)
	if again := second.addr(t); again != addr {
		t.Fatalf("the first user's address %s does not work any more: it is %s now", addr, again)
	}
	if got := readAll(t, addr, topic); len(got) != 1 {
		t.Fatalf("read %d records of 1 after the restart", len(got))
	}
	first.finish(t)
	second.finish(t)
	awaitNothing(t, tmp)
}

// A stand-in for `go test`: a process named "go" that runs two test binaries one
// after the other, with a pause that is longer than the linger time.
const fakeGo = `#!/bin/bash
run() { "$0.test" -test.run='^TestHelper$' -test.v </dev/null; }
run
touch -d '1 hour ago' "$TMPDIR"/walrig-brokers-*/*/users
sleep 2
run
read -r _ || true
`

func TestSharedBrokerOutlivesPausesOfOneGoTest(t *testing.T) {
	t.Parallel()
	needBrokers(t, kafkaRecipe, "Kafka")
	tmp, bin := t.TempDir(), t.TempDir()
	goPath := filepath.Join(bin, "go")
	// Another process writes it: one that this one forks at the same moment would
	// keep it open for writing, and it could not be executed.
	write := exec.Command("install", "-m", "0700", "/dev/stdin", goPath)
	write.Stdin = strings.NewReader(fakeGo)
	if out, err := write.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, goPath+".test"); err != nil {
		t.Fatal(err)
	}
	run := startAs(t, exec.Command(goPath), "shared kafka", tmp)
	if a, b := run.addr(t), run.addr(t); a != b {
		t.Fatalf("the second package got a broker of its own: %s, not %s", b, a)
	}
	run.finish(t)
	awaitNothing(t, tmp)
}

func TestLockIsFreeAfterClose(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	first, err := lockFile(path, exclusive, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockFile(path, exclusive, 50*time.Millisecond); err == nil {
		t.Fatal("locked twice")
	}
	first.Close()
	second, err := lockFile(path, exclusive, bound)
	if err != nil {
		t.Fatal(err)
	}
	second.Close()
}

func TestRoomOfAnotherUserIsRefused(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	dir := filepath.Join(tmp, fmt.Sprintf("walrig-brokers-%d", os.Getuid()))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := sharedDir(); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil { // others may write scripts into it
		t.Fatal(err)
	}
	if _, err := sharedDir(); err == nil {
		t.Fatal("a folder that everybody may write to was taken")
	}
}

func TestLeaseOfARemovedRoomIsNoLease(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "room")
	users := filepath.Join(dir, "users")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	watchdog, err := lockFile(users, exclusive, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer watchdog.Close()
	late := make(chan error, 1)
	go func() {
		lease, err := joinOnce(dir, bound)
		if err == nil {
			lease.Close()
		}
		late <- err
	}()
	// Once it waits for the lock of this room, the watchdog removes the room.
	if !eventually(func() bool { return opened(t, users) == 2 }) {
		t.Fatal("the next user did not come")
	}
	if err := os.Rename(dir, dir+".ended"); err != nil {
		t.Fatal(err)
	}
	watchdog.Close()
	if err := <-late; !errors.Is(err, errRoomGone) {
		t.Fatalf("joined a removed room: %v", err)
	}
	lease, err := joinOnce(dir, bound)
	if err != nil {
		t.Fatal(err)
	}
	lease.Close()
}

// opened counts this process's descriptors of path.
func opened(t *testing.T, path string) int {
	t.Helper()
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && to == path {
			n++
		}
	}
	return n
}
