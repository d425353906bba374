# Every target first sets up .venv where that isn't done yet: see tools/setup.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

export PATH := $(CURDIR)/.venv/bin:$(PATH)
unexport PYTHONDONTWRITEBYTECODE # else every worker of pytest compiles all tests anew
export NO_MKDOCS_2_WARNING := 1 # the theme's notice of its own future, at every build
BENCHES := $(filter-out bench-identity bench-network_report,$(patsubst bench/%.py,bench-%,$(wildcard bench/[a-z]*.py)))

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@for name in $(BENCHES); do echo "       $$name"; done
	@echo 'Arguments go through ARGS, as in  make demo ARGS="--rtt 60"'

.PHONY: setup
setup: ## Create .venv and install everything into it (the other targets do this by themselves)
	@tools/setup

# The main job

.PHONY: demo
demo: setup ## Run one prompt split and cloud-alone on the demo pair, and compare tokens and speeds
	@draftwire demo $(ARGS)

# Tests and checks

.PHONY: test
test: setup ## Run all tests, those on the real models included
	pytest -n auto tests/property tests/unit $(ARGS)
	pytest -n 2 --dist loadfile tests/conformance tests/faults tests/integration tests/gpu $(ARGS)

.PHONY: test-fast
test-fast: setup ## Run the tests that need neither torch nor models: half a minute
	pytest -n auto -m "not models and not slow" tests/property tests/unit $(ARGS)

.PHONY: fuzz
fuzz: setup ## Feed the codec, for a minute, bytes found by what code they reach (Linux; installs the fuzz extra)
	@python -c 'import atheris' 2>/dev/null || python -m pip install -q -c constraints.txt atheris
	python -m tools.fuzz_codec $(ARGS)

.PHONY: check
check: setup ## Check format, lint, types, import contracts, wire contract, generated files and the site
	ruff format --check
	ruff check
	mypy
	lint-imports --no-logo
	buf lint
	python -m tools.stubs --check
	python -m tools.cli_docs --check
	python -m tools.traces --check
	mkdocs build --strict

.PHONY: format
format: setup ## Format the code and apply the safe lint fixes
	ruff format
	ruff check --fix

.PHONY: proto
proto: setup ## Regenerate the stubs from proto/ (BREAK=1: even if the change breaks the contract)
	python -m tools.stubs $(if $(BREAK),--break)

.PHONY: docs
docs: setup ## Regenerate docs/cli.md from the commands' help texts and docs/traces/, and build the site into build/site
	python -m tools.cli_docs
	python -m tools.traces
	mkdocs build --strict

.PHONY: wheel
wheel: setup ## Build wheel and source archive into dist/
	hatchling build

# Measurements

.PHONY: identity
identity: setup ## Compare split output with the target's own, token for token, over the full grid
	python -m bench.identity $(ARGS)

.PHONY: soak
soak: setup ## Half an hour of 64 devices, faults and restarts: equal texts, and nothing grows
	python -m bench.soak --faults --minutes 30 $(ARGS)

.PHONY: bench
bench: bench-network ## Compare splitting with the cloud alone over networks, within an hour (ARGS=--quick: minutes)

.PHONY: benches
benches: $(filter-out bench-soak,$(BENCHES)) ## Run every benchmark but the soak, which takes long

bench-%: setup ## Run one benchmark of bench/
	python -m bench.$* $(ARGS)

.PHONY: clean
clean: ## Remove caches and build outputs; .venv stays
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -path ./.venv -prune -o -name __pycache__ -type d -exec rm -rf {} +
