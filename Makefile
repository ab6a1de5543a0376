# Two commands set everything up on a fresh machine with Python 3.11+ and pip:
#   make demo   create .venv, install, run the whole pipeline on built-in data and show the result
#   make test   create .venv, install, then lint, types and the whole test suite (with Chromium, see browser)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: install demo test readers browser lint types slow clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

demo: install
	rm -rf runs/demo
	$(BIN)/selfmark demo --output runs/demo

test: install lint types readers browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

# Programs whose own code reads our files back in the tests; alone, because what they would bring along is large
# or in conflict with ours.
readers: install
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps \
	  label-studio-sdk lightning-pose ultralytics

browser: install
	sh scripts/install_chromium.sh $(BIN)/python

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

slow: install
	$(BIN)/python -m pytest -m "slow"

clean:
	rm -rf $(VENV) runs/demo build dist src/*.egg-info
