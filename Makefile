SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The linter is built by the Go toolchain, so that it comes from the Go module proxy and nothing else is needed.
GOLANGCI_LINT_VERSION := v2.15.0
GOLANGCI_LINT := bin/golangci-lint-$(GOLANGCI_LINT_VERSION)

# How long one package's tests may take, and how long each fuzz target runs.
TEST_TIMEOUT ?= 20m
FUZZ_TIME ?= 10s

# Folders whose Node packages the tests need, and the benchmarks. The stamp is the file that npm writes last.
stamps = $(patsubst %package-lock.json,%node_modules/.package-lock.json,$(wildcard $(1)))
TEST_NODE := $(call stamps,contracts/package-lock.json sdk/package-lock.json test/*/package-lock.json)
BENCH_NODE := $(call stamps,bench/package-lock.json bench/*/package-lock.json)

##@ Run

.PHONY: demo
demo: ## Play 40 business days of two restaurants; fails if anything was lost
	go run ./cmd/rollingd demo

.PHONY: dev
dev: ## Serve on embedded stores with a demo tenant; prints URLs and what to try
	go run ./cmd/rollingd dev

.PHONY: sdk
sdk: sdk/node_modules/.package-lock.json ## Build the SDK, as its example till needs it
	npm run build --prefix sdk --silent

##@ Check

.PHONY: test
test: $(TEST_NODE) ## All tests, and the parity of the contracts
	go test -timeout $(TEST_TIMEOUT) ./...
	scripts/verify-contracts-parity.sh
	npm test --prefix sdk --silent

.PHONY: test-couchdb
test-couchdb: $(TEST_NODE) ## The same on Apache CouchDB: ROLLINGD_TEST_COUCHDB_URL, or a private node
	go run ./scripts/withcouchdb go test -count=1 -timeout $(TEST_TIMEOUT) ./...

.PHONY: race
race: $(TEST_NODE) ## All tests under the race detector; of the tables of faults, every fourth case
	go test -race -short -timeout $(TEST_TIMEOUT) ./...

.PHONY: lint
lint: $(GOLANGCI_LINT) ## gofmt, go vet, golangci-lint, no moving clock in SQL, generated docs
	go vet ./...
	$(GOLANGCI_LINT) run ./...
	@# The clock that moves within a transaction decides nothing here: now() does.
	@! grep -rnE --include='*.sql' --include='*.go' --exclude-dir=node_modules '^[^-/#]*\b(clock_timestamp|statement_timestamp|timeofday)\b' .
	@for script in .ci/run scripts/*.sh; do bash -n "$$script"; done
	go test -run '^TestStateMachineDocument$$' ./internal/daydb

.PHONY: fuzz
fuzz: ## Each fuzz target for FUZZ_TIME (10s)
	@grep -rl --include='*_test.go' --exclude-dir=node_modules '^func Fuzz' . | sort | while read -r file; do \
	  for target in $$(sed -nE 's/^func (Fuzz[A-Za-z0-9_]+)\(.*/\1/p' "$$file"); do \
	    echo "== $$(dirname "$$file") $$target"; \
	    go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZ_TIME) "$$(dirname "$$file")"; \
	  done; \
	done

.PHONY: gamedays
gamedays: ## The twelve outages of the continuity plane, over real processes; GAMEDAY_ARGS="-only 1,5"
	go run ./gamedays $(GAMEDAY_ARGS)

.PHONY: bench
bench: $(BENCH_NODE) ## Measure the ratios of docs/performance.md; BENCH_ARGS="-quick" for a short try
	go run ./bench $(BENCH_ARGS)

##@ Maintain

.PHONY: generate
generate: ## Write docs/state-machine.md from the transition table
	go test -count=1 -run '^TestStateMachineDocument$$' ./internal/daydb -update

.PHONY: build
build: ## Build bin/rollingd
	CGO_ENABLED=0 go build -trimpath -o bin/rollingd ./cmd/rollingd

.PHONY: clean
clean: ## Remove what was built and installed here
	rm -rf bin contracts/build sdk/build sdk/dist $(dir $(TEST_NODE) $(BENCH_NODE))

.PHONY: help
help: ## This list
	@awk 'BEGIN {FS = ":.*## "} \
	  /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

%/node_modules/.package-lock.json: %/package-lock.json
	npm ci --prefix $* --no-audit --no-fund --loglevel=error
	@touch $@

$(GOLANGCI_LINT):
	@installed=$$(command -v golangci-lint || true); mkdir -p bin; \
	if [ -n "$$installed" ] && [ "v$$("$$installed" version --short)" = "$(GOLANGCI_LINT_VERSION)" ]; then \
	  ln -sf "$$installed" $@; \
	else \
	  GOBIN=$$(pwd)/bin go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION); \
	  mv bin/golangci-lint $@; \
	fi
