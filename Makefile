# make demo    train a search agent on this machine (12 to 23 minutes on 2 cores, no GPU, no model hub)
# make test    the tests, in under 10 minutes   make check   lint, types and all tests, the long ones too
# make setup   only .venv                      make clean   remove everything that was made, runs/ excepted
# Every target sets up what it needs; the second time that costs nothing.

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.ready
# One torch thread per test process: two processes with two threads each on two cores only get in each other's way.
# Each takes a part of the tests in order, so that what a module shares is made once, and then from the others'.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --maxprocesses 8 --dist worksteal

.PHONY: setup demo test check lint types fuzz bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt scripts/setup.sh
	@PYTHON="$(PYTHON)" bash scripts/setup.sh
	@touch $@

demo: $(STAMP)
	$(BIN)/seekling train demo

test: $(STAMP)
	$(PYTEST) -m "not long"

check: lint types
	$(PYTEST)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

# Property tests with many more random examples than `make test` takes; then ten minutes of random frames and
# mutated programs against the sandbox.
fuzz: $(STAMP)
	$(PYTEST) -m "not real and not gpu" --hypothesis-profile=fuzz
	SEEKLING_FUZZ_S=$${SEEKLING_FUZZ_S:-600} $(BIN)/pytest -s tests/attack/fuzz_sandbox.py

bench: $(STAMP)
	@for program in benchmarks/*.py; do [ -e "$$program" ] || continue; echo "== $$program"; $(BIN)/python "$$program" || exit 1; done

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
