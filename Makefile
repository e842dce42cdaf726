# `make demo` shows what the library does; `make test` runs everything that CI runs; `make quick` runs what takes a
# minute and needs no g++; `make attack` looks for what breaks, for an hour.
# Needed beforehand: Python 3.11 or newer (with venv) and, for the tests, g++. The rest is installed in .venv.

PYTHON ?= python3
# Test processes: one a core, at most eight (each holds numba, CuPy and a few matrices in memory). Each begins with
# rooms of its own (`worksteal`), so that no two compile the same functions at the same time.
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); [ "$$n" -le 8 ] && echo "$$n" || echo 8)

# Compiled code is kept, so that only the first run pays for it; Python's is kept whatever the shell says.
export NUMBA_CACHE_DIR ?= $(CURDIR)/.venv/numba-cache
export PYTHONDONTWRITEBYTECODE =

# How long `make attack` goes on, and from which seed: make attack SECONDS=300 SEED=7
SECONDS ?= 3600
SEED ?=

.PHONY: test quick demo attack docs site-test dist lint format clean

test: .venv/ready-test lint
	NUMBA_NUM_THREADS=$${NUMBA_NUM_THREADS:-2} OMP_NUM_THREADS=$${OMP_NUM_THREADS:-2} OPENBLAS_NUM_THREADS=1 \
		.venv/bin/python -m pytest -n $(WORKERS) --dist worksteal

quick: .venv/ready-test
	OPENBLAS_NUM_THREADS=1 .venv/bin/python -m pytest -q -n $(WORKERS) --dist worksteal -m 'not slow and not simt and not ranks'

# One matrix and its plan, six classes of real matrices verified and timed beside the libraries that are installed, and
# one system solved by several solvers.
demo: .venv/ready-bench
	mkdir -p demo
	.venv/bin/dasp config
	.venv/bin/dasp info circuit:800000 --html demo/plan.html
	.venv/bin/dasp bench fem3:28 stencil27:60 poisson2d:1000 powerlaw:400000 circuit:800000 kkt:500000
	.venv/bin/dasp solve poisson3d:80 --precond multigrid --compare

attack: .venv/ready-test
	OPENBLAS_NUM_THREADS=1 .venv/bin/python -m tests.attack --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

# The site, in build/docs: figures drawn, examples run. A warning is an error.
docs: .venv/ready-docs
	OPENBLAS_NUM_THREADS=1 .venv/bin/python -m sphinx -W --keep-going -n -q -d build/doctrees docs build/docs
	@echo 'Open build/docs/index.html.'

# Every page of it in a headless Chromium, wide and narrow; pictures in build/screenshots.
site-test: docs
	DASP_SITE=build/docs .venv/bin/python -m pytest -q tests/test_site.py

# The files of a release, in dist: built, checked, and the wheel installed and run where the checkout is not.
dist: | .venv/bin/python
	rm -rf dist build/fresh
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input build twine
	.venv/bin/python -P -m build
	.venv/bin/python -m twine check --strict dist/*
	$(PYTHON) -m venv build/fresh
	build/fresh/bin/pip install --quiet --disable-pip-version-check --no-input dist/*.whl
	cd build/fresh && bin/dasp config && bin/dasp solve poisson2d:30 --device cpu && bin/dasp fetch --list >fetch.txt

# Ruff and mypy, and the two packages whose types mypy reads: neither CuPy nor NVRTC.
lint: .venv/ready-lint
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

format: .venv/ready-lint
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

clean:
	rm -rf .venv build dist demo docs/api docs/drawn docs/gallery .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else \
		f"{sys.executable} is Python {v[0]}.{v[1]}; dasp needs 3.11 or newer; run make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv

.venv/ready-lint: pyproject.toml | .venv/bin/python
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input 'ruff>=0.8' 'mypy>=1.13' 'numpy>=2.2' 'ml_dtypes>=0.5'
	@touch $@

# A stamp for each extra, renewed when pyproject.toml changes.
.venv/ready-%: pyproject.toml | .venv/bin/python
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input --editable '.[$*]'
	@touch $@
