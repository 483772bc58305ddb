package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

const (
	sdkModule = "github.com/walrig/walrig"
	// templateGo is the Go version of the published module.
	templateGo = "1.26.0"
	// directModule is what the template imports besides walrig.
	directModule = "go.uber.org/zap"
)

var (
	goLine      = regexp.MustCompile(`(?m)^go (\S+)$`)
	requireLine = regexp.MustCompile(`(?m)^(?:require)?\s+(\S+) (v\S+)(?: // indirect)?$`)
)

// modFiles returns go.mod and go.sum. With a checkout of the SDK they are complete:
// the versions and checksums are the checkout's, so that nothing has to be fetched
// or decided. Without one, go.sum is nil and `go mod tidy` completes both.
func (p *newPlugin) modFiles() (mod, sum []byte, err error) {
	if p.SDK == "" {
		return fmt.Appendf(nil, "module %s\n\ngo %s\n\nrequire %s %s\n", p.Module, templateGo, sdkModule, p.version), nil, nil
	}
	sdkMod, err := os.ReadFile(filepath.Join(p.SDK, "go.mod"))
	if err != nil {
		return nil, nil, usageError("--sdk wants the folder of a checkout of walrig", "--sdk: %v", err)
	}
	if !strings.HasPrefix(string(sdkMod), "module "+sdkModule+"\n") {
		return nil, nil, usageError("--sdk wants the folder of a checkout of walrig", "--sdk: %s is the go.mod of another module", filepath.Join(p.SDK, "go.mod"))
	}
	sdkSum, err := os.ReadFile(filepath.Join(p.SDK, "go.sum"))
	if err != nil {
		return nil, nil, usageError("--sdk wants the folder of a checkout of walrig", "--sdk: %v", err)
	}
	required, summed, err := neededModules()
	if err != nil {
		return nil, nil, err
	}
	goVersion := templateGo
	if m := goLine.FindSubmatch(sdkMod); m != nil {
		goVersion = string(m[1])
	}
	var direct, indirect, sums strings.Builder
	for _, m := range requireLine.FindAllStringSubmatch(string(sdkMod), -1) {
		switch {
		case m[1] == directModule:
			fmt.Fprintf(&direct, "\t%s %s\n", m[1], m[2])
		case required[m[1]]:
			fmt.Fprintf(&indirect, "\t%s %s // indirect\n", m[1], m[2])
		}
	}
	for line := range strings.Lines(string(sdkSum)) {
		if module, _, _ := strings.Cut(line, " "); summed[module] {
			sums.WriteString(line)
		}
	}
	mod = fmt.Appendf(nil, "module %s\n\ngo %s\n\nrequire (\n\t%s v0.0.0\n%s)\n\nrequire (\n%s)\n\nreplace %s => %s\n",
		p.Module, goVersion, sdkModule, direct.String(), indirect.String(), sdkModule, modPath(p.SDK))
	return mod, []byte(sums.String()), nil
}

// modPath quotes a path for go.mod where that is needed.
func modPath(path string) string {
	if strings.ContainsAny(path, " \"'`(),[]{}") || strings.Contains(path, "//") {
		return strconv.Quote(path)
	}
	return path
}

// neededModules reads plugintemplate/modules.txt: the modules that a new plugin's
// go.mod lists, and those that its go.sum has.
func neededModules() (required, summed map[string]bool, err error) {
	text, err := pluginTemplates.ReadFile("plugintemplate/modules.txt")
	if err != nil {
		return nil, nil, err
	}
	required, summed = map[string]bool{}, map[string]bool{}
	for line := range strings.Lines(string(text)) {
		switch kind, module, _ := strings.Cut(strings.TrimSpace(line), " "); kind {
		case "mod":
			required[module] = true
		case "sum":
			summed[module] = true
		}
	}
	return required, summed, nil
}
