# Thin: each target is one command. `make` lists them.
PYTHON ?= python3
RECIPE ?= tiny_omni/sft
EXTRA ?=
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help env demo test lint types contracts docs docs-check lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

env: ## make or update .venv (instant when current); EXTRA="gpu nemo" adds extras
	@$(PYTHON) tools/make_env.py $(addprefix --extra ,$(EXTRA))

demo: env ## fine-tune and evaluate a tiny omni model end to end; RECIPE=... takes another recipe
	@$(BIN)/avlm demo $(RECIPE)

test: env ## run the tests
	@$(BIN)/python -m pytest

lint: env ## ruff: rules and format
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: env ## mypy
	@$(BIN)/mypy avlm automodel tools

contracts: env ## import-linter: which package may import which
	@$(BIN)/lint-imports

docs: env ## write docs/recipe.md from the schema
	@$(BIN)/python -m avlm.recipe.docs

docs-check: env ## fail when docs/recipe.md is out of date
	@$(BIN)/python -m avlm.recipe.docs --check

lock: env ## resolve requirements/*.txt anew from pyproject.toml, keeping pins that fit; UPGRADE=1 takes the newest
	@$(BIN)/python tools/lock.py $(if $(UPGRADE),--upgrade)

clean: ## remove caches and build output (not .venv, not outputs/)
	@rm -rf build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .import_linter_cache && find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
