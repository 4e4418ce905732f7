# Every target works first in a fresh clone, on a machine with Python 3.11 or newer, pip and make.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test lint format bench clean

demo: $(INSTALLED)-demo
	$(BIN)/runspan demo $(ARGS)

test: $(INSTALLED)-dev
	$(BIN)/pytest $(ARGS)

lint: $(INSTALLED)-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED)-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)-dev
	$(BIN)/python benchmarks/hot_paths.py $(ARGS)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "runspan needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

# What is installed is noted in a file of its own an extra, so that `make demo` does not wait for the developers' tools.
$(INSTALLED)-%: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	touch $@
