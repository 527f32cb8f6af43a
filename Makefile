# Every target sets itself up in .venv: nothing but python3 (3.11 or newer) and make is needed.
# The stamps in .venv are renewed when the dependencies change, so a second call starts at once.
PYTHON ?= python3
PY := .venv/bin/python
# Workers of the test and benchmark tools must find the venv's programs, too.
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.PHONY: help demo test test-all lint docs bench clean

help:
	@echo "make demo      match a real stereo pair with the light install, check it with its disparity"
	@echo "make test      the tests that take seconds"
	@echo "make test-all  all tests: also trains, builds the wheel and installs it in an empty venv"
	@echo "make lint      ruff, mypy, the direction of imports, the examples of the public API"
	@echo "make docs      the documentation as a site, in site/"
	@echo "make bench     the speed benchmarks of benchmarks/"
	@echo "make clean     remove .venv and everything that was built"

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

# Speed alone: studies that train (axes) or need a set (orientation), and the ten minutes of soak_web, are called by themselves.
SPEED := assign_words cut_patches describe detect extract_folder hpatches_scale match_descriptors match_pair retrieval start_up train_step

bench: .venv/.dev
	@set -e; for name in $(SPEED); do echo "$(PY) benchmarks/$$name.py"; $(PY) benchmarks/$$name.py; done

clean:
	rm -rf .venv build dist demo site .pytest_cache .mypy_cache .ruff_cache src/*.egg-info
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

.venv/bin/python:
	$(PYTHON) -m venv .venv

# The light install: no torch. (-qq: errors are shown, notes about package mirrors are not.)
.venv/.demo: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing the light install into .venv, about a minute"
	@$(PY) -m pip install -qq --disable-pip-version-check -c constraints.txt -e ".[demo]"
	@touch $@

.venv/.dev: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing everything for training, benchmarks and tests into .venv, a few minutes"
	@$(PY) -m pip install -qq --disable-pip-version-check -c constraints.txt -e ".[train,bench,sfm,search,cluster,web,degensac,formats,dev]"
	@touch $@
