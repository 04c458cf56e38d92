# All that is needed is python3 (3.11 or newer) with venv and pip: everything else goes into .venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# What `make test` installs; `make test TEST_EXTRAS=test` does without torch (its tests are then skipped).
TEST_EXTRAS ?= test,torch
# For instance: make demo DEMO_ARGS="--snapshot ./my-model" or DEMO_ARGS=--generated
DEMO_ARGS ?=
# For instance: make bench BENCH_ARGS="--only peers"
BENCH_ARGS ?=
# For instance: make test PYTEST_ARGS="-k ledger -x"
PYTEST_ARGS ?=
# Test files run side by side in so many processes: more than cores, because tests of real daemons also wait.
# TEST_WORKERS=0 runs them one after the other in one.
TEST_WORKERS ?= 3
# Hundreds of daemons are started: each would compile our modules again.
unexport PYTHONDONTWRITEBYTECODE

PROTOS := $(wildcard proto/chappe/v1/*.proto)
PROTOC = $(BIN)/python -m grpc_tools.protoc -Iproto --python_out=$(1) --pyi_out=$(1) --grpc_python_out=$(1) $(PROTOS)

.DEFAULT_GOAL := help
.PHONY: help demo demo-delta test soak bench lint types format generate check-generated wheel check clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.base ## Broadcast a real model to 6 relays on this machine, check every copy, compare with a star
	@$(BIN)/python -m chappe.cli.demo $(DEMO_ARGS)

demo-delta: $(VENV)/.torch ## Ten training steps, ten versions: deltas to 4 relays on this machine, every copy checked
	@$(BIN)/python -m bench.demodelta $(DEMO_ARGS)

test: $(VENV)/.test ## Run the tests
	$(BIN)/python -m pytest -m "not soak" -n $(TEST_WORKERS) --dist loadfile $(PYTEST_ARGS)

soak: $(VENV)/.test ## Run the tests that take minutes
	$(BIN)/python -m pytest -m soak $(PYTEST_ARGS)

bench: $(VENV)/.bench $(VENV)/.torch ## Short forms of all measurements, then bench/RESULTS.md (root: shaped links)
	$(BIN)/python -m bench all --short $(BENCH_ARGS)

lint: $(VENV)/.dev ## ruff: lint and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev ## mypy --strict
	$(BIN)/mypy

format: $(VENV)/.dev ## Rewrite the files as ruff wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

generate: $(VENV)/.dev ## Generate src/chappe/v1 from proto/
	$(call PROTOC,src)

check-generated: $(VENV)/.dev ## Prove that the committed generated code is current
	@set -e; out=$$(mktemp -d); trap 'rm -rf "$$out"' EXIT; \
	$(call PROTOC,$$out); \
	for file in "$$out"/chappe/v1/*; do \
	  cmp "$$file" "src/chappe/v1/$$(basename "$$file")" || { echo "run: make generate"; exit 1; }; \
	done; echo "generated code is current"

wheel: $(VENV)/.dev ## Build the wheel, install it in a clean environment, start both programs there
	@set -e; out=$$(mktemp -d); trap 'rm -rf "$$out"' EXIT; \
	$(BIN)/python -m build --wheel --outdir "$$out" . >"$$out/build.log" 2>&1 || { cat "$$out/build.log"; exit 1; }; \
	$(PYTHON) -m venv "$$out/venv"; \
	"$$out/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$$out"/*.whl; \
	cd "$$out"; \
	for program in "chappe" "chappe coordinator" "chappe publish" "relayd"; do \
	  "$$out"/venv/bin/$$program --help >help.txt; grep -q "Example" help.txt \
	    || { echo "$$program --help has no example"; cat help.txt; exit 1; }; \
	done; \
	venv/bin/python -c 'import importlib.resources as r, chappe; assert (r.files(chappe) / "py.typed").is_file()'; \
	ls -- *.whl

check: test lint types check-generated wheel ## Everything that CI runs

clean: ## Remove the environment and everything built
	rm -rf $(VENV) dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Chappe needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP_INSTALL) -e .
	@touch $@

# Without torch (no wheel for this Python, no network) the demo does another kind of steps, and says so.
$(VENV)/.torch: $(VENV)/.base
	@$(PIP_INSTALL) -e ".[torch]" || echo "torch cannot be installed here: going on without"
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP_INSTALL) -e ".[$(TEST_EXTRAS)]"
	@touch $@ $(VENV)/.base

$(VENV)/.bench: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP_INSTALL) -e ".[bench]"
	@touch $@ $(VENV)/.base

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP_INSTALL) -e ".[$(TEST_EXTRAS),dev]"
	@touch $@ $(VENV)/.test $(VENV)/.base
