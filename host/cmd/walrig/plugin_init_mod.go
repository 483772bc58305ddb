package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/walrig/walrig/sdk/walimpls"
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
// versions and checksums are the checkout's, so that nothing has to be fetched or
// decided (go.sum has more than is needed, which does no harm). Without one, go.sum is nil and `go mod tidy` completes both.
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
	required, err := neededModules()
	if err != nil {
		return nil, nil, err
	}
	goVersion := templateGo
	if m := goLine.FindSubmatch(sdkMod); m != nil {
		goVersion = string(m[1])
	}
	var direct, indirect []string
	for _, m := range requireLine.FindAllStringSubmatch(string(sdkMod), -1) {
		switch {
		case m[1] == directModule:
			direct = append(direct, fmt.Sprintf("\t%s %s\n", m[1], m[2]))
		case slices.Contains(required, m[1]):
			indirect = append(indirect, fmt.Sprintf("\t%s %s // indirect\n", m[1], m[2]))
		}
	}
	slices.Sort(indirect)
	mod = fmt.Appendf(nil, "module %s\n\ngo %s\n\nrequire (\n\t%s v0.0.0\n%s)\n\nrequire (\n%s)\n\nreplace %s => %s\n",
		p.Module, goVersion, sdkModule, strings.Join(direct, ""), strings.Join(indirect, ""), sdkModule, modPath(p.SDK))
	return mod, sdkSum, nil
}

// modPath quotes a path for go.mod where that is needed.
func modPath(path string) string {
	if strings.ContainsAny(path, " \"'`(),[]{}") || strings.Contains(path, "//") {
		return strconv.Quote(path)
	}
	return path
}

// neededModules are the modules that the packages of a new plugin and its test come
// from.
func neededModules() ([]string, error) {
	text, err := pluginTemplates.ReadFile("plugintemplate/modules.txt")
	if err != nil {
		return nil, walimpls.Errorf(walimpls.CodeInternal, "", "the list of modules: %w", err)
	}
	return strings.Fields(string(text)), nil
}
