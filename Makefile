# `make demo` and `make test` are all a fresh machine needs.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
WORKERS ?= 2

export TOKENIZERS_PARALLELISM = false
# One thread per test worker: two workers with two threads each are slower than either alone.
TEST_ENV := OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
# Real corpora, for the tests that use them; they skip without.
SHARED_DATA := $(wildcard ../shared/data)
ifneq ($(SHARED_DATA),)
export PUSHDOWN_DATA ?= $(abspath $(SHARED_DATA))
endif

.PHONY: demo test test-slow lint docs bench results outputs picture screenshot clean

demo: $(STAMP)
	$(BIN)/pushdown demo --out runs/demo

test: $(STAMP)
	$(TEST_ENV) $(BIN)/python -m pytest -n $(WORKERS)

test-slow: $(STAMP)
	$(TEST_ENV) $(BIN)/python -m pytest -n $(WORKERS) -m slow

lint: $(STAMP)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/python -m codespell_lib

# The documentation, in site/; a broken link or reference is an error.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

bench: $(STAMP)
	$(BIN)/pushdown bench trees
	$(BIN)/pushdown bench train
	$(BIN)/pushdown bench pipeline
	$(BIN)/pushdown bench search

# The tables of docs/results.md, from results/.
results: $(STAMP)
	$(BIN)/python -m pushdown_lm.experiments.results_page docs/results.md

# What the code on the pages prints, by the model of `make demo`.
outputs: $(STAMP)
	$(BIN)/python -m tests.pages README.md docs/*.md docs/tutorials/*.md

# The picture of the README, by the model in the box.
picture: $(STAMP)
	$(BIN)/pushdown parse 'The keys to the old cabinet are on the table.' --svg runs/pictures
	cp runs/pictures/1.svg docs/images/tree.svg

# The picture of the explorer's page, by the model in the box; needs Chromium.
screenshot: $(STAMP)
	HF_HUB_OFFLINE=1 $(BIN)/python -m tests.explorer.screenshot docs/images/explorer.png

$(STAMP): pyproject.toml constraints.txt models/english/pyproject.toml models/english-base/pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt \
		--editable '.[dev]' --editable models/english --editable models/english-base
	touch $(STAMP)

clean:
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
