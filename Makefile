# Shunter. `make demo` shows the main job; `make test` runs every test; both install what they need (Debian packages only as root).
SHELL := /bin/sh
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
LAB_TESTS := tests/contract tests/crash tests/acceptance

.PHONY: help demo demo-dynamo test fuzz bench lint docs generate system run-env dev-env clean
.DEFAULT_GOAL := help

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

demo: run-env ## the main job, on this machine, while you watch
	@scripts/demo

demo-dynamo: run-env ## the same with a real NVIDIA Dynamo (700 MB, no GPU): its decode worker moves in mid-stream
	@scripts/demo-dynamo

test: dev-env ## all tests
	@scripts/test

fuzz: dev-env ## fuzz what reads policies for a minute (make fuzz SECONDS=600 for longer)
	@cd tests/fuzz && d=$$(mktemp -d) && ../../$(BIN)/python -c "import fuzz_policies as f, pathlib, sys; f.seeds(pathlib.Path(sys.argv[1]), pathlib.Path('../..'))" $$d \
	  && ../../$(BIN)/python fuzz_policies.py -timeout=20 -max_total_time=$(or $(SECONDS),60) -artifact_prefix=$$d/ $$d

bench: dev-env ## figures, one JSON object a line, also in bench.json (make bench NAME=x runs one)
	@$(BIN)/python tests/bench/run.py $(NAME)

lint: dev-env ## formatting, lint, types, import rules, generated files
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	scripts/generate-wire --check
	$(BIN)/python scripts/generate-schemas --check
	$(BIN)/python scripts/generate-crds --check
	$(BIN)/python scripts/generate-argocd --check
	$(BIN)/python scripts/generate-reference --check

docs: dev-env ## the parts of docs/reference that come from the code
	$(BIN)/python scripts/generate-reference

generate: dev-env ## protobuf modules, JSON Schemas, custom resources and their health checks, from schemas/*.proto and shunter.model
	scripts/generate-wire
	$(BIN)/python scripts/generate-schemas
	$(BIN)/python scripts/generate-crds
	$(BIN)/python scripts/generate-argocd

# -- what the others need

system:
	@scripts/system

run-env: system .venv/.run
dev-env: system .venv/.dev

.venv/.run: pyproject.toml
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv
	@echo "installing Shunter into .venv"
	@$(PIP) -e '.[engine,agent]'
	@touch $@

.venv/.dev: pyproject.toml
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv
	@echo "installing Shunter and its development tools into .venv"
	@$(PIP) -e '.[dev]'
	@touch .venv/.run $@

clean: ## remove what the other targets made
	rm -rf .venv bench.json .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
