#!/bin/sh
# Install a wheel with all extras into an empty environment, check all packages for known vulnerabilities, and write a
# software bill of materials (CycloneDX) next to the wheel. Needs the network.
# Usage: scripts/audit_release.sh dist/selfmark-*.whl
set -eu
wheel=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}

"$python" -m venv "$folder/released"
"$folder/released/bin/python" -m pip install --quiet --constraint constraints.txt "$wheel[all]"
"$python" -m venv "$folder/tools"
"$folder/tools/bin/python" -m pip install --quiet pip-audit cyclonedx-bom

"$folder/tools/bin/cyclonedx-py" environment --pyproject pyproject.toml --output-reproducible \
  --output-format JSON --output-file "${wheel%.whl}.cdx.json" "$folder/released/bin/python"
# Leave out selfmark and cut off local version labels (torch's +cpu), because the package index does not know them.
# With --strict, a failed lookup is an error. Otherwise an audit without a connection would report no vulnerabilities.
"$folder/released/bin/python" -m pip list --format freeze --exclude selfmark | sed 's/+.*//' >"$folder/packages.txt"
"$folder/tools/bin/pip-audit" --strict --no-deps --disable-pip --desc --requirement "$folder/packages.txt"
