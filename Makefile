# Two commands are enough: `make demo` and `make test`. Both set themselves up first.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

.PHONY: help setup demo test chaos check fmt native bench results docs clean
help:
	@echo "make demo    set up, then show seven programs sharing this machine (under 3 minutes)"
	@echo "make test    set up, then lint, types, import rules and every test"
	@echo "make chaos   500 faults against real jobs and a real daemon, thousands against the core"
	@echo "make setup   .venv with carpool, its pinned dependencies and a CPU build of torch"
	@echo "make check   lint, formatting, strict types, import rules"
	@echo "make fmt     format the code        make native  rebuild the C libraries"
	@echo "make bench   all benchmarks         make docs    redraw the state diagrams"
	@echo "make results run every study of docs/results.md again and print its tables"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt $(wildcard native/*.[ch] native/*.def native/fake/*)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "carpool needs Python 3.11 or newer; '$(PYTHON)' is older. Try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@sh native/compiler.sh
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torch,nvidia,fast,plot,dev,clients]'
	@touch $@

demo: setup
	@$(BIN)/python examples/demo.py

check: setup
	@$(BIN)/ruff format --check src tests examples
	@$(BIN)/ruff check src tests examples
	@$(BIN)/mypy
	@$(BIN)/pytest -q tests/test_architecture.py

# Two files of tests at a time: most of them wait for real programs to start. One hash seed, so that the examples of
# the properties are the same in every run; CARPOOL_EXPLORE=1 looks for new ones.
test: check
	PYTHONHASHSEED=0 $(BIN)/pytest -n 2 --dist loadfile

chaos: setup
	CHAOS_FAULTS=500 CHAOS_SEEDS=3000 $(BIN)/pytest -s tests/chaos tests/e2e/test_chaos.py

fmt: setup
	@$(BIN)/ruff format src tests examples
	@$(BIN)/ruff check --fix src tests examples

native:
	rm -f $(STAMP)
	$(MAKE) setup

bench: setup
	@for name in boundary handover jct throughput interposer; do $(BIN)/carpool bench $$name || exit 1; done

results: setup
	@for name in salus fgd muri philly itp; do $(BIN)/carpool sim --study $$name || exit 1; done

docs: setup
	@$(BIN)/python -m carpool.testing.diagrams
	@$(BIN)/python -m carpool.testing.coverage

clean:
	rm -rf $(VENV) build src/*.egg-info src/carpool/_native/*.so
