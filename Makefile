# walrig. `make` prints this help.

SHELL := /bin/bash -o pipefail
.DEFAULT_GOAL := help

LISTEN   ?= 127.0.0.1:7700
DATA_DIR ?= ./walrig-data
ARGS     ?=
# More flags for go test, such as GOTESTFLAGS='-run TestFoo -v'.
GOTESTFLAGS ?=

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
COMMIT  := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
LDFLAGS := -X main.version=$(VERSION) -X main.commit=$(COMMIT)

# Each tool is pinned in a modfile of its own, so that none of its dependencies
# reach go.mod.
TOOL = go tool -modfile=tools/$(1).mod $(1)

.PHONY: help
help: ## print this help
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/walrig and bin/walrig-plugin-*
	@mkdir -p bin
	go build -ldflags '$(LDFLAGS)' -o bin/ ./host/cmd/... ./plugins/rmq/cmd/... ./plugins/kafka/cmd/... ./plugins/pulsar/cmd/... ./conformance/faultbackend/cmd/...

.PHONY: run
run: build ## build, and serve in the foreground (LISTEN=127.0.0.1:7700 DATA_DIR=./walrig-data ARGS=)
	@exec bin/walrig serve --listen '$(LISTEN)' --data-dir '$(DATA_DIR)' $(ARGS)

.PHONY: test
test: ## run every test with the race detector
	go test -race -timeout 20m $(GOTESTFLAGS) ./...

.PHONY: test-short
test-short: ## run the quick tests, without the race detector and without brokers
	go test -short -timeout 5m $(GOTESTFLAGS) ./...

.PHONY: conformance
conformance: ## run the whole conformance matrix: every mutant and check, 20 seeds of the reference, every way in
	go test -timeout 60m $(GOTESTFLAGS) ./conformance ./conformance/mutants -count=1 -full

.PHONY: lint
lint: verify-proto verify-mod ## check style, the protocol files, generated code and go.mod
	$(call TOOL,golangci-lint) run
	$(call TOOL,buf) lint

.PHONY: fix
fix: fix-mod proto ## repair what lint can repair
	$(call TOOL,golangci-lint) run --fix
	$(call TOOL,golangci-lint) fmt

.PHONY: proto
proto: ## generate the Go code of sdk/proto
	$(call TOOL,buf) generate

.PHONY: verify-proto
verify-proto: ## check that the generated code is what `make proto` makes
	@set -e; new=$$(mktemp -d); trap 'rm -rf "$$new"' EXIT; \
	  $(call TOOL,buf) generate -o "$$new"; \
	  for f in $$(cd "$$new/sdk/proto" && find . -name '*.pb.go'); do \
	    diff -u "sdk/proto/$$f" "$$new/sdk/proto/$$f" || { echo "sdk/proto/$$f is out of date: run make proto" >&2; exit 1; }; done; \
	  for f in $$(cd sdk/proto && find . -name '*.pb.go'); do \
	    test -f "$$new/sdk/proto/$$f" || { echo "sdk/proto/$$f has no .proto file: delete it" >&2; exit 1; }; done

.PHONY: verify-mod
verify-mod: ## check that go.mod is tidy
	go mod tidy -diff

.PHONY: fix-mod
fix-mod: ## tidy go.mod
	go mod tidy

.PHONY: test-modules
test-modules: ## build and test the modules that have a go.mod of their own
	tools/test-modules

.PHONY: docs
docs: ## write the generated pages of docs/ and conformance/ anew
	go test ./host/config ./host/server ./host/cmd/walrig -run 'Docs' -count=1 -update
	go test ./plugins/pulsar -run TestDocs -count=1 -update
	go test ./conformance -run 'TestSpecIsTheTable|TestSchemaIsTheTypes' -count=1 -update

.PHONY: bench
bench: ## run the Go benchmarks, and those against peers (rmq: 5 rounds of 10 s; brokers are started)
	go test -run '^$$' -bench . -benchmem -timeout 30m ./...
	cd plugins/rmq/bench && go run . -rounds 5 -time 10s -appenders 1,128,1024
	cd plugins/kafka/bench && go test -run '^$$' -bench . -benchtime 1x -timeout 30m .
	cd plugins/pulsar/bench && go test -run '^$$' -bench . -benchtime 1x -timeout 30m .

.PHONY: clean
clean: ## remove what build made
	rm -rf bin
