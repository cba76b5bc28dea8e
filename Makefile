# Two commands are enough: `make demo` and `make test`. Both set themselves up first.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
CUDA_VENV := .venv-cuda
CUDA_BIN := $(CUDA_VENV)/bin
CUDA_STAMP := $(CUDA_VENV)/.ready

.PHONY: help setup demo test test-again compiled test-torch-cuda chaos check fmt native bench results docs house golden clean
help:
	@echo "make demo    set up, then show seven programs sharing this machine (under 3 minutes)"
	@echo "make test    set up, then lint, types, import rules and every test"
	@echo "make test-again  only the tests that failed in the last run, one after the other"
	@echo "make test-torch-cuda  PyTorch's CUDA build on the stand-in GPU, in a .venv-cuda of its own (downloads 530 MB)"
	@echo "make chaos   500 faults against real jobs and a real daemon, thousands against the core"
	@echo "make setup   .venv with carpool, its pinned dependencies and a CPU build of torch"
	@echo "make check   lint, formatting, strict types, import rules"
	@echo "make fmt     format the code        make native  rebuild the C libraries"
	@echo "make bench   all benchmarks         make docs    redraw the state diagrams, list the rules"
	@echo "make house   how well the code can be seen: figures with their bounds, and docs/house.svg"
	@echo "make golden  record again what the schedulers answer (tests/golden); only when an answer is meant to change"
	@echo "make results run every study of docs/results.md again, print its tables, name stale figures"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt $(wildcard native/*.[ch] native/*.def native/fake/*)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "carpool needs Python 3.11 or newer; '$(PYTHON)' is older. Try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@sh native/compiler.sh
	$(PYTHON) -m venv $(VENV)
	@echo "installing carpool, torch and what the tests need into $(VENV): about 1,500 MB with a CPU build of torch, a minute or more"
	@rm -f src/carpool/_native/*.so
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torch,nvidia,fast,plot,dev,clients]'
	@touch $@

demo: setup
	@$(BIN)/python examples/demo.py

check: setup
	@$(BIN)/ruff format --check src tests examples
	@$(BIN)/ruff check src tests examples
	@$(BIN)/mypy
	@$(BIN)/pytest -q tests/test_architecture.py

# Five files of tests at a time, in the order of tests/conftest.py: most of them wait for real programs to start. One
# hash seed, so that the examples of the properties are the same in every run; CARPOOL_EXPLORE=1 looks for new ones.
# Compiled first, as hundreds of short processes import carpool and write no bytecode themselves; so are the tests, in
# pytest's form of them and beside the checks, or each of the five would do it again.
test: setup
	@sh tests/packages.sh
	@$(MAKE) --no-print-directory -j2 check compiled
	PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n 5 --dist loadfile --no-loadscope-reorder

# Says whether a failure comes from the tests or from the load. Nothing to run again is a failure: then no test had failed,
# but what comes before them.
test-again: setup
	@$(MAKE) --no-print-directory check
	@echo "these tests failed in the run before; each is run once more, with nothing beside it:"
	PYTHONHASHSEED=0 $(BIN)/pytest -v --last-failed --last-failed-no-failures none

compiled: setup
	@$(BIN)/python -m compileall -q src
	@PYTHONDONTWRITEBYTECODE= $(BIN)/pytest --collect-only -qq > /dev/null || true  # the tests say what is wrong

# The CUDA build is the one without a local version; '===' keeps a '+cpu' wheel of the same number out. It requires some
# GB of NVIDIA's libraries, which are not wanted here: stand-ins take their places.
$(CUDA_STAMP): pyproject.toml constraints.txt tests/torch_cuda/libraries.py $(wildcard native/*.[ch] native/*.def native/fake/*)
	@sh native/compiler.sh
	$(PYTHON) -m venv $(CUDA_VENV)
	$(CUDA_BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[nvidia,fast,dev]' numpy filelock typing-extensions sympy networkx jinja2 fsspec setuptools
	$(CUDA_BIN)/pip install --quiet --disable-pip-version-check --no-deps "$$(sed -n 's/^torch==/torch===/p' constraints.txt)" || { echo "PyTorch's CUDA build cannot be had from your package index: nothing was tested"; exit 1; }
	$(CUDA_BIN)/python -m tests.torch_cuda.libraries
	@touch $@

test-torch-cuda: $(CUDA_STAMP)
	PYTHONHASHSEED=0 $(CUDA_BIN)/pytest -m torch_cuda tests/torch_cuda

chaos: setup
	CHAOS_FAULTS=500 CHAOS_SEEDS=3000 RELEASED_JOBS=2000 SOAK_JOBS=5000 $(BIN)/pytest -s tests/chaos \
		tests/e2e/test_chaos.py tests/e2e/test_chaos_users.py tests/e2e/test_once.py tests/e2e/test_release.py tests/e2e/test_soak.py

fmt: setup
	@$(BIN)/ruff format src tests examples
	@$(BIN)/ruff check --fix src tests examples

native:
	rm -f $(STAMP)
	$(MAKE) setup

bench: setup
	@for name in boundary handover jct throughput interposer; do $(BIN)/carpool bench $$name || exit 1; done

results: setup
	@$(BIN)/python -m carpool.testing.results

docs: setup
	@$(BIN)/python -m carpool.testing.diagrams
	@$(BIN)/python -m carpool.testing.coverage
	@$(BIN)/python -m carpool.testing.protocol_texts
	@$(BIN)/python -m carpool.testing.house.rules
	@$(BIN)/python -m carpool.testing.house.drawing

house: setup
	@$(BIN)/python -m carpool.testing.house --draw

golden: setup
	@$(BIN)/python -m tests.golden.record

clean:
	rm -rf $(VENV) $(CUDA_VENV) build src/*.egg-info src/carpool/_native/*.so
