# Everything is set up from a bare Python 3.11+ and make, in a virtual environment in this folder.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests share compiled programs between processes and between runs.
TEST := TESSERA_CACHE=$(CURDIR)/.jax_cache JAX_PLATFORMS=cpu $(BIN)/python -m pytest

.PHONY: train test test-slow test-browser test-wheel check docs bench dash-assets clean

train: $(VENV)/.core
	$(BIN)/tessera train ppo gymnax:CartPole-v1 --seed 1 --target-return 475

test: $(VENV)/.dev
	$(TEST) -m "not slow" -n 2 --dist loadfile

test-slow: $(VENV)/.dev
	$(TEST) -m slow

# The dashboard in a real browser; Chromium is installed from Debian's packages if it is missing and this may be done.
test-browser: $(VENV)/.dev
	@command -v chromium chromium-browser google-chrome >/dev/null || apt-get install --yes --quiet chromium || \
		{ echo "no Chromium here: install one (on Debian: apt-get install chromium, as root), then try again"; exit 1; }
	$(TEST) tests/dash/test_browser.py

# What a release consists of, in build/wheel: the source distribution, and the wheel that is built from it alone. The
# wheel is used in a virtual environment of its own, without the repository.
BUILD := 1.6.1
test-wheel:
	rm -rf .venv-build .venv-wheel build/wheel build/installed && mkdir -p build/wheel build/installed
	$(PYTHON) -m venv .venv-build
	.venv-build/bin/python -m pip install --quiet build==$(BUILD)
	.venv-build/bin/pyproject-build --outdir build/wheel . >build/wheel.log || { cat build/wheel.log; exit 1; }
	$(PYTHON) -m venv .venv-wheel
	.venv-wheel/bin/python -m pip install --quiet --constraint requirements/dev.txt "$$(ls build/wheel/*.whl)[dash]"
	cd build/installed && ../../.venv-wheel/bin/python -I ../../tests/installed.py

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site, in build/docs; a warning is an error. Nothing is fetched while it is built or read.
docs: $(VENV)/.docs
	@echo "building the site: commands are run and notebooks executed, 2 to 5 minutes"
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --builder html docs build/docs
	@echo "the site is build/docs/index.html"

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/fused.py
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/transport.py
	$(BIN)/python benchmarks/acting.py

# uPlot, which draws the dashboard's curves, as it is kept in tessera/dash/static.
UPLOT := 1.6.32
UPLOT_SHA256 := 4b8a8191e425658e3ea8c8c1314b0fc679c861ee3a1af2b20c7b16ba50b5133d
dash-assets:
	rm -rf build/uplot && mkdir -p build/uplot
	cd build/uplot && npm pack --silent uplot@$(UPLOT)
	echo "$(UPLOT_SHA256)  build/uplot/uplot-$(UPLOT).tgz" | sha256sum --check --quiet
	tar -xzf build/uplot/uplot-$(UPLOT).tgz -C build/uplot
	cp build/uplot/package/dist/uPlot.iife.min.js build/uplot/package/dist/uPlot.min.css tessera/dash/static/
	cp build/uplot/package/LICENSE tessera/dash/static/uPlot.LICENSE

clean:
	rm -rf $(VENV) .venv-* .jax_cache .pytest_cache .mypy_cache .ruff_cache build docs/_generated *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.core: requirements/core.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing the core into $(VENV): about 950 MB, 1 to 2 minutes"
	$(BIN)/python -m pip install --quiet -r requirements/core.txt
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.core requirements/dev.txt
	@echo "installing all extras and tools into $(VENV): about 1.4 GB more, 1 to 2 minutes"
	$(BIN)/python -m pip install --quiet -r requirements/dev.txt
	touch $@

$(VENV)/.docs: $(VENV)/.dev requirements/docs.txt
	$(BIN)/python -m pip install --quiet -r requirements/docs.txt
	touch $@
