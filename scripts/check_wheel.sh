#!/bin/sh
# Install a built wheel into an empty virtual environment and run `selfmark demo` from there.
# Usage: scripts/check_wheel.sh [--skip-demo] WHEEL
# Environment: PYTHON is the interpreter (default: python3); SKIP_DEMO=1 is the same as --skip-demo.
set -eu

skip_demo=${SKIP_DEMO:-}
if [ "${1:-}" = --skip-demo ]; then
  skip_demo=1
  shift
fi
if [ $# -ne 1 ] || [ ! -f "$1" ]; then
  echo "usage: scripts/check_wheel.sh [--skip-demo] WHEEL (one file; make build writes it to dist/)" >&2
  exit 2
fi
wheel=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
root=$(cd "$(dirname "$0")/.." && pwd)

unset PYTHONPATH  # so that pip and Python see only the new environment
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --constraint "$root/constraints.txt" "$wheel"

# Leave the repository, so that Python imports the installed package and not the source.
cd "$folder"
"$folder/venv/bin/selfmark" --version
if [ -n "$skip_demo" ]; then
  echo "skipped selfmark demo"
else
  "$folder/venv/bin/selfmark" demo --output "$folder/demo"
  test -s "$folder/demo/run/model/model.json"
fi
