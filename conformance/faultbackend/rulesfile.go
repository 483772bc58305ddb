package faultbackend

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/walrig/walrig/sdk/walimpls"
)

// rulesFile is a file of rules that is read again when it changed.
type rulesFile struct {
	path string
	info fs.FileInfo // as of the last read; nil for a file that was not there
	text string
	read bool
}

// racyWindow is how long a file that was just written is read at every look: a
// second write may leave size and modification time as they are.
const racyWindow = 100 * time.Millisecond

// releasePoll is how often a waiting call looks at the rules file, since nobody
// may come by who would.
const releasePoll = 10 * time.Millisecond

// WriteRules replaces a rules file in one step, so that a running backend never
// sees half of it. The rules are checked first.
func WriteRules(file, text string) error {
	if err := CheckRules(text); err != nil {
		return err
	}
	return writeFile(file, []byte(text))
}

// writeFile replaces a file by renaming a new one over it.
func writeFile(file string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), file)
	}
	if err != nil {
		_ = os.Remove(tmp.Name()) // err says what matters
	}
	return err
}

// useFile takes the rules of a file from now on. A file that is missing holds
// no rules; one that cannot be read as rules is an error.
func (c *Controller) useFile(file string) error {
	c.fileMu.Lock()
	c.file = rulesFile{path: file}
	c.fileMu.Unlock()
	c.refresh()
	if problem := c.Stats().RulesError; problem != "" {
		return walimpls.Errorf(walimpls.CodeInvalidArgument, "", "key %q: %s", "rules_file", problem)
	}
	return nil
}

// refresh reads the rules file if it changed. Rules with an error change
// nothing; the error is in Stats until the file is mended.
func (c *Controller) refresh() {
	c.fileMu.Lock()
	defer c.fileMu.Unlock()
	f := &c.file
	if f.path == "" {
		return
	}
	info, err := os.Stat(f.path)
	if err != nil {
		info = nil
	}
	if f.read && f.unchanged(info) {
		return
	}
	var data []byte
	if info != nil {
		data, err = os.ReadFile(f.path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		data, err = nil, nil
	}
	same := f.read && err == nil && string(data) == f.text
	f.info, f.text, f.read = info, string(data), err == nil
	if same {
		return
	}
	if err == nil {
		err = CheckRules(f.text)
	}
	c.setExtra(f.text, err)
}

func (f *rulesFile) unchanged(info fs.FileInfo) bool {
	if f.info == nil || info == nil {
		return f.info == nil && info == nil
	}
	return os.SameFile(f.info, info) && f.info.Size() == info.Size() &&
		f.info.ModTime().Equal(info.ModTime()) && time.Since(info.ModTime()) > racyWindow
}

// polled reports whether waiting calls must look at a rules file themselves.
func (c *Controller) polled() bool {
	c.fileMu.Lock()
	defer c.fileMu.Unlock()
	return c.file.path != ""
}
