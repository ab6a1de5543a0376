# Two commands set everything up on a fresh machine with Python 3.11+ and pip:
#   make demo   create .venv, install selfmark, and run the whole pipeline on generated images
#   make test   create .venv, install selfmark, and run lint and the whole test suite
# Other targets: make lint, docs (into site/), build (into dist/), check-wheel, slow (slow tests), fuzz, clean.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: install demo test readers browser lint style types imports docs build check-wheel slow fuzz clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

demo: install
	rm -rf runs/demo
	$(BIN)/selfmark demo --output runs/demo

test: lint readers browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

# Packages that only the tests use: programs that read the files that selfmark writes, and transformers, whose DINOv2 is
# compared with selfmark's. They are installed without their dependencies, which are large or conflict with ours.
readers: install
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps \
	  label-studio-sdk lightning-pose ultralytics \
	  transformers tokenizers huggingface-hub httpx2 httpcore2 truststore
	$(BIN)/python -m pip install --quiet --no-deps keypoint-moseq==0.8.1  # has no wheel, so it is not in requirements.lock

browser: install
	sh scripts/install_chromium.sh $(BIN)/python

# All checks that do not run the program.
lint: style types imports docs

style: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

imports: install
	$(BIN)/lint-imports --no-logo

# NO_MKDOCS_2_WARNING hides an advertisement for the next major version of MkDocs.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

build: install
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*

# Install the built wheel into an empty environment and run the demo; with SKIP_DEMO=1, only print the version.
check-wheel: build
	sh scripts/check_wheel.sh dist/*.whl

# For MINUTES minutes, corrupt files and read them. A file that causes an error is added to tests/fuzz/corpus.
MINUTES ?= 10
SEED ?= 0
fuzz: install
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --minutes $(MINUTES) --seed $(SEED) --out fuzz.json

slow: install
	$(BIN)/python -m pytest -m "slow"

clean:
	rm -rf $(VENV) runs/demo build dist site src/*.egg-info
