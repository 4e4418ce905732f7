# Every target works first in a fresh clone, on a machine with Python 3.11 or newer, pip and make.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test stack-test lint format dashboards proto bench up down clean

demo: $(INSTALLED)-demo
	$(BIN)/runspan demo $(ARGS)

test: $(INSTALLED)-dev
	$(BIN)/pytest $(ARGS)

# The programs are built before the tests, so that what a build says is seen while it runs.
stack-test: $(INSTALLED)-dev
	$(BIN)/python tests/stack/build.py
	$(BIN)/pytest tests/stack $(ARGS)

lint: $(INSTALLED)-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED)-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# What Grafana reads is generated: see tools/dashboards.
dashboards: $(INSTALLED)-dev
	PYTHONPATH=tools $(BIN)/python -m dashboards

# The messages of the dashboard service are generated from proto/.
proto: $(INSTALLED)-dev
	$(BIN)/python tools/proto.py

bench: $(INSTALLED)-dev
	$(BIN)/python benchmarks/hot_paths.py $(ARGS)
	$(BIN)/python benchmarks/reading.py
	$(BIN)/python benchmarks/stragglers.py

# Docker Compose reads .env itself: a password for Grafana's admin is made once.
up:
	@test -n "$$GF_SECURITY_ADMIN_PASSWORD" || grep -qs '^GF_SECURITY_ADMIN_PASSWORD=.' .env || \
	  (umask 077 && printf 'GF_SECURITY_ADMIN_PASSWORD=%s\n' "$$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')" >> .env && \
	  echo "Grafana's admin password was generated: it stands in .env")
	docker compose up --detach
	@echo "Jaeger http://127.0.0.1:16686  Prometheus http://127.0.0.1:9090  Grafana http://127.0.0.1:3000"
	@echo "Ship a run: OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4317"

down:
	docker compose down

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

# pip is what a half-made environment lacks (Debian without python3-venv): the next attempt then says so again.
$(BIN)/pip:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "runspan needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

# What is installed is noted in a file of its own an extra, so that `make demo` does not wait for the developers' tools.
$(INSTALLED)-%: pyproject.toml | $(BIN)/pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	touch $@
