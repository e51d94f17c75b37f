# Two commands need no set-up of their own: `make demo` and `make test`. Everything they need goes to .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PYTHONSAFEPATH := 1
export HF_HUB_DISABLE_TELEMETRY := 1

.PHONY: help setup demo test soak check format clean

help:
	@echo "make demo   train a real small model on real documents, watched (sets everything up)"
	@echo "make test   lint, types, contracts, tests (sets everything up)"
	@echo "make soak   the long proofs: kills, faults, big sweeps, properties on new examples"
	@echo "make check  lint, types and contracts only"

setup:
	@.ci/setup $(PYTHON) $(VENV)

demo: setup
	@$(BIN)/longfit demo

check: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet . || { echo "ruff format: run make format"; exit 1; }
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache | tail -n 8

test: check
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not soak and not gpu" $(PYTEST_ARGS)

soak: setup
	$(BIN)/python -m pytest -q -m soak
	$(BIN)/python -m pytest -q -m "not soak and not gpu" --hypothesis-profile=search $$(grep -rl hypothesis tests --include="test_*.py")

format: setup
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
