# Everything is set up from a bare Python 3.11+ and make, in a virtual environment in this folder.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests share compiled programs between processes and between runs.
TEST := TESSERA_CACHE=$(CURDIR)/.jax_cache JAX_PLATFORMS=cpu $(BIN)/python -m pytest

.PHONY: train test test-slow check bench clean

train: $(VENV)/.core
	$(BIN)/tessera train ppo gymnax:CartPole-v1 --seed 1 --target-return 475

test: $(VENV)/.dev
	$(TEST) -m "not slow" -n 2 --dist loadfile

test-slow: $(VENV)/.dev
	$(TEST) -m slow

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/fused.py
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/transport.py
	$(BIN)/python benchmarks/acting.py

clean:
	rm -rf $(VENV) .venv-* .jax_cache .pytest_cache .mypy_cache .ruff_cache build *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.core: requirements/core.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -r requirements/core.txt
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.core requirements/dev.txt
	$(BIN)/python -m pip install --quiet -r requirements/dev.txt
	touch $@
