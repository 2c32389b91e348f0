# `make demo` and `make test` are all a fresh machine needs.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
WORKERS ?= 2

export TOKENIZERS_PARALLELISM = false
# One thread a test worker: two workers with two threads each are slower than either alone.
TEST_ENV := OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1

.PHONY: demo test test-slow lint bench readme clean

demo: $(STAMP)
	$(BIN)/pushdown demo --out runs/demo

test: $(STAMP)
	$(TEST_ENV) $(BIN)/python -m pytest -n $(WORKERS)

test-slow: $(STAMP)
	$(TEST_ENV) $(BIN)/python -m pytest -n $(WORKERS) -m slow

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/pushdown bench trees
	$(BIN)/pushdown bench train
	$(BIN)/pushdown bench pipeline
	$(BIN)/pushdown bench search

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

# The tables of the README, from results/.
readme: $(STAMP)
	$(BIN)/python -m pushdown_lm.experiments.readme README.md

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
