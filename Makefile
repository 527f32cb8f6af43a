# Every target installs what it needs into .venv; you need only python3 (3.11 or newer) and make.
# The stamps in .venv record an installation, so nothing is installed again until dependencies change.
PYTHON ?= python3
PY := .venv/bin/python
# Processes started by tests and benchmarks must find the programs of the venv.
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# Tests start many processes; compiling every module again in each would take a minute.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-all lint docs bench clean

help:
	@echo "make demo      match a real stereo pair with the light install, and check it against the true disparity"
	@echo "make test      the default tests, four to five minutes"
	@echo "make test-all  all tests, including training runs and an installation of the wheel"
	@echo "make lint      ruff, mypy, import-linter, and the doctests of the public API"
	@echo "make docs      build the documentation site in site/"
	@echo "make bench     run the speed benchmarks"
	@echo "make clean     remove .venv and all build output"

demo: .venv/.demo
	$(PY) examples/demo.py
	@echo 'to look at photos in a browser: .venv/bin/pip install -e ".[web]" && .venv/bin/hardnet serve'

test: .venv/.dev
	$(PY) -m pytest -m "not slow" -n 2 --dist loadfile

test-all: .venv/.dev
	$(PY) -m pytest

lint: .venv/.dev
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy
	.venv/bin/lint-imports
	$(PY) -m pytest --doctest-modules src/hardnet --ignore=src/hardnet/web

docs: .venv/.dev
	$(PY) -m mkdocs build --strict --quiet

# Speed only. Studies that train (axes), need a data set (orientation) or take long (soak_web) are run by hand.
SPEED := assign_words cut_patches describe detect extract_folder hpatches_scale match_descriptors match_pair retrieval start_up train_step

bench: .venv/.dev
	@set -e; for name in $(SPEED); do echo "$(PY) benchmarks/$$name.py"; $(PY) benchmarks/$$name.py; done

clean:
	rm -rf .venv build dist demo site .pytest_cache .mypy_cache .ruff_cache src/*.egg-info
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

.venv/bin/python:
	$(PYTHON) -m venv .venv

# The light install has no torch. -qq hides notes about package mirrors but shows errors.
.venv/.demo: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing the light install into .venv, about a minute"
	@$(PY) -m pip install -qq --disable-pip-version-check -c constraints.txt -e ".[demo]"
	@touch $@

.venv/.dev: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing everything for training, benchmarks and tests into .venv, a few minutes"
	@$(PY) -m pip install -qq --disable-pip-version-check -c constraints.txt -e ".[train,bench,sfm,search,cluster,web,degensac,formats,dev]"
	@touch $@
