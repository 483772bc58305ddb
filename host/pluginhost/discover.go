package pluginhost

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// binaryPrefix and the backend's name make the name of a plugin's binary.
const binaryPrefix = "walrig-plugin-"

// discover returns the path of the plugin's binary: the configured one, else
// the one beside the host's binary, else the one in the plugin folder. The
// first place that has something of that name decides, be it usable or not: a
// broken install must not silently start another version.
func discover(cfg Config, opt Options) (string, *failure) {
	if cfg.Path != "" {
		path, err := filepath.Abs(cfg.Path)
		if err != nil {
			return "", failf(ReasonMissing, true, err, "use an absolute path", "%s: %v", cfg.Path, err)
		}
		if _, err := os.Stat(path); err != nil {
			return path, missing(path, err)
		}
		return path, nil
	}
	name := binaryPrefix + cfg.Backend
	var places []string
	hostBinary := opt.HostBinary
	if hostBinary == "" {
		hostBinary, _ = os.Executable()
	}
	if hostBinary != "" {
		places = append(places, filepath.Dir(hostBinary))
	}
	if opt.PluginDir != "" {
		places = append(places, opt.PluginDir)
	}
	for i, dir := range places {
		path, err := filepath.Abs(filepath.Join(dir, name))
		if err != nil {
			continue
		}
		places[i] = filepath.Dir(path)
		switch _, err := os.Stat(path); {
		case err == nil:
			return path, nil
		case !errors.Is(err, fs.ErrNotExist):
			return path, missing(path, err)
		}
	}
	return "", failf(ReasonMissing, true, fs.ErrNotExist,
		fmt.Sprintf("put %s into one of these folders, or set plugins.%s.path", name, cfg.Name),
		"no binary %s in %s", name, strings.Join(places, " or "))
}

func missing(path string, err error) *failure {
	if errors.Is(err, fs.ErrNotExist) {
		return failf(ReasonMissing, true, err, "build or install the plugin there, or correct its path", "there is no %s", path)
	}
	return failf(ReasonMissing, true, err, "let the host read and execute the file", "cannot look at %s: %v", path, err)
}
