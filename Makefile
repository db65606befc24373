# `make` alone lists what can be made. Everything lives in .venv; nothing is installed into the system's Python.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/bash
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# 3.12 when the machine has it, else any that is new enough; `make PYTHON=/path/to/python3.13 ...` for another. Each is
# tried, not just looked for: pyenv leaves a python3.12 in the path that only says that it is not there.
CANDIDATES := python3.12 $(wildcard $(HOME)/.pyenv/versions/3.12*/bin/python3.12) python3 python3.13 python3.11 /usr/bin/python3
PYTHON ?= $(shell for python in $(CANDIDATES); do "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)

BIN := .venv/bin
# Folders are listed too: a module that was removed must go from the installed copy.
SOURCES := $(shell find src \( -name __pycache__ -o -name '*.egg-info' -o -name '.?*' \) -prune -o ! -name '*.so' ! -name ramet-pod -print 2>/dev/null) pyproject.toml setup.py
C_SOURCES = $(shell find src -name '*.[ch]')
.PHONY: help
help:
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS=$$'\t' read -r name what; do printf '  make %-9s %s\n' "$$name" "$$what"; done

.PHONY: demo
demo: .venv/installed  ## make .venv, build, run examples/quickstart.py
	@echo "running examples/quickstart.py"
	@$(BIN)/python examples/quickstart.py

.PHONY: test
test: .venv/installed .venv/test  ## install what is needed, then run what a change is likely to break (ten minutes)
	@tools/run-tests fast

.PHONY: test-all
test-all: .venv/installed .venv/test  ## every test, also as an ordinary user, mutants, ten minutes of soak (ONLY="tests/network soak")
	@tools/run-tests all $(ONLY)

.PHONY: check
check: .venv/installed .venv/test  ## format, lint, layers, types, generated code
	$(BIN)/python tools/generate-sync --check
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(C_SOURCES)
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

.PHONY: bench
bench: .venv/installed .venv/bench  ## measure against ipykernel, bubblewrap, fork and IPython: ratios (BENCH="--quick --only fork")
	$(BIN)/python -m bench $(BENCH)

.PHONY: soak
soak: .venv/installed .venv/test  ## random forks, merges and snapshots against a model for minutes, then a look for leaks (SOAK="--minutes 30")
	$(BIN)/python -m tests.soak $(SOAK)

.PHONY: mutants
mutants: .venv/installed .venv/test  ## break the product in many ways, one at a time: tests must see each (MUTANTS="--only 'seccomp-*'")
	$(BIN)/python -m tests.mutants $(MUTANTS)

.PHONY: fix
fix: .venv/installed .venv/test  ## format the code, mend what the linter can, generate the blocking SDK
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python tools/generate-sync
	$(BIN)/clang-format -i $(C_SOURCES)

.PHONY: docs
docs: .venv/installed .venv/test  ## run the examples in the documents, check their links and the paths they name
	$(BIN)/python -m pytest -q tests/docs

.PHONY: clean
clean:  ## remove .venv, build products and caches
	rm -rf .venv build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	rm -f src/ramet/isolation/ramet-pod src/ramet/freezing/*.so src/ramet/isolation/*.so
	find src tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# --- .venv: four steps, each done again only when what it is made from changes --------------------------------------

# Where no interpreter was found, tools/need installs Debian's or says what is missing.
.venv/made:
	@tools/need build $(or $(PYTHON),/usr/bin/python3)
	@echo "making .venv with $$($(or $(PYTHON),/usr/bin/python3) --version)"
	@$(or $(PYTHON),/usr/bin/python3) -m venv --clear .venv
	@touch $@

# Dependencies apart from the project, so that a change of the source costs one short build.
.venv/core: pyproject.toml tools/requirements .venv/made
	@$(BIN)/python tools/requirements demo > .venv/core.txt
	@echo "installing $$(wc -l < .venv/core.txt) packages and what they need: the core, numpy and pandas (about 100 MB to download)"
	@$(BIN)/python -m pip install -q -r .venv/core.txt
	@touch $@

.venv/test: .venv/core
	@tools/need test || echo "going on without: tests that need them will say so"
	@$(BIN)/python tools/requirements test > .venv/test.txt
	@echo "installing what tests and checks need (about 400 MB to download; takes a minute or two)"
	@$(BIN)/python -m pip install -q -r .venv/test.txt
	@touch $@

.venv/bench: .venv/test
	@tools/need bench || echo "going on without bubblewrap: its row will say so"
	@$(BIN)/python tools/requirements bench > .venv/bench.txt
	@$(BIN)/python -m pip install -q -r .venv/bench.txt
	@touch $@

# Installed, not editable: tests see what a user gets, the helper program and py.typed included. The build folder goes
# first because setuptools would pack modules that are no longer in the source.
.venv/installed: $(SOURCES) .venv/core
	@rm -rf build
	@echo "building and installing Ramet"
	@$(BIN)/python -m pip install -q --no-deps --no-build-isolation --force-reinstall .
	@rm -rf build
	@touch $@
