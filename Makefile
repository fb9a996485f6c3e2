# make demo     set up, then run the demonstration
# make test     set up, lint, and pass the tests
# make bench    set up, then measure memory and nets (writes results/*.json and docs/performance.md)
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint format bench clean

$(STAMP): pyproject.toml constraints.txt hatch_build.py src/carm/memory/native.c
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo,dev]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/carm demo

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile

bench: $(STAMP)
	$(BIN)/carm bench memory --json results/memory.json
	$(BIN)/carm bench nets --json results/nets.json
	$(BIN)/python -m carm.bench.document

clean:
	rm -rf $(VENV) src/carm/memory/_native.so .pytest_cache .mypy_cache .ruff_cache .hypothesis
