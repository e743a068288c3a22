# On a fresh machine with Python 3.11+ and make: `make demo` or `make test` sets everything up first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: install browser demo test test-slow lint types unit clean

install: $(STAMP)

# torch comes first and by its pinned version alone: a CPU build then satisfies everything that asks for torch later.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "fedsynth needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 install"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) $$(grep -E '^(torch|setuptools)==' constraints.txt)
	$(PIP) --no-build-isolation -e '.[dev]'
	@touch $(STAMP)

# For the tests that open reports; they are skipped, with a word, where there is none.
browser:
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
		DEBIAN_FRONTEND=noninteractive timeout 300 sh -c 'apt-get update -qq && \
			apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null' || \
		echo "No Chromium could be installed here: install one by hand, or the tests in a browser are skipped."

demo: install
	$(BIN)/fedsynth compare examples/demo.toml --no-references \
		--methods fedavg,moments,private=moments:epsilon=8,noise=moments:synthetic=noise,analytic,agg_enhance,local

test: lint types unit

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

# The real network starts a score of processes and has the machine to itself; everything else runs side by side:
# each worker has half of the files, so that what a file sets up is set up once, and takes over from one that is slower.
NETWORK := tests/network/test_real_network.py
unit: install
	$(BIN)/python -m pytest $(NETWORK)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal --ignore $(NETWORK)

test-slow: install
	$(BIN)/python -m pytest -m slow -rs tests/network

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
