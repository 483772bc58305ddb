package brokers

import (
	"encoding/json"
	"os"
	"path/filepath"
	"time"
)

// joinShared returns the ports of the shared broker of rec, which it boots if
// nobody else has, and a lease that keeps it alive.
func joinShared(rec recipe, ports int, env func(ports []int) []string) (*room, []int, error) {
	// Before anything is made that would have to be removed again.
	if !runs(rec) {
		if err := rec.require(); err != nil {
			return nil, nil, err
		}
	}
	deadline := time.Now().Add(installTimeout + 3*bootTimeout)
	r, err := joinRoom(rec, deadline)
	if err != nil {
		return nil, nil, err
	}
	chosen, err := r.running(rec, ports, env, deadline)
	if err != nil {
		r.close()
		return nil, nil, err
	}
	return r, chosen, nil
}

// running sees that the broker runs. One process of a room does that at a time.
func (r *room) running(rec recipe, ports int, env func([]int) []string, deadline time.Time) ([]int, error) {
	boot, err := lockFile(filepath.Join(r.dir, "boot"), exclusive, time.Until(deadline))
	if err != nil {
		return nil, err
	}
	defer boot.Close()
	// The boot lock goes along to the recipe: who comes after a starter that was
	// killed waits until its half-done start has ended.
	if err := r.furnish(rec, boot); err != nil {
		return nil, err
	}
	if err := r.keepForRun(); err != nil {
		return nil, err
	}
	known := readState(r.dir)
	if len(known) == ports && answers(local(known[0])) {
		return known, nil
	}
	if err := rec.install(); err != nil {
		return nil, err
	}
	n := &node{room: r, dir: r.node(1)}
	if len(known) == ports {
		// It died. On its old ports and data the others can go on.
		n.env = env(known)
		if err := n.Restart(); err == nil {
			return known, nil
		}
	}
	var chosen []int
	err = bootFresh(ports, func(p []int) error {
		chosen, n.env = p, env(p)
		return n.startEmpty()
	})
	if err != nil {
		return nil, err
	}
	return chosen, r.writeState(chosen)
}

// startEmpty starts the broker without data, in place of whatever is there.
func (n *node) startEmpty() error {
	if _, err := os.Stat(n.dir); err == nil {
		if err := n.Kill(); err != nil {
			return err
		}
		if err := os.RemoveAll(n.dir); err != nil {
			return err
		}
	}
	return n.start()
}

// runs tells whether there is a shared broker that answers. It may end at any
// time: only a lease keeps it.
func runs(rec recipe) bool {
	dir, err := rec.sharedRoom()
	if err != nil {
		return false
	}
	ports := readState(dir)
	return len(ports) > 0 && answers(local(ports[0]))
}

// readState returns the ports of the room's broker, none if it was not yet
// started. A torn file is as good as none: a broker without known ports is
// replaced.
func readState(dir string) []int {
	b, err := os.ReadFile(filepath.Join(dir, "state"))
	var ports []int
	if err != nil || json.Unmarshal(b, &ports) != nil {
		return nil
	}
	return ports
}

func (r *room) writeState(ports []int) error {
	b, err := json.Marshal(ports)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.dir, "state"), b, 0o600)
}
