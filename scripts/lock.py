"""Make requirements.lock anew: every package of constraints.txt but torch, with the checksum of its file.

    python scripts/lock.py

pip itself says which file it would install here and what its sha256 is, from whatever index it is configured
with; nothing is installed, and no address gets into the file. So the lock is for the platform this is run on:
run it where the tests run. torch is left out because its builds differ by platform and accelerator.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
HEAD = """\
# The tested set, with checksums, for CPython {python} on {platform}; torch apart. Made by scripts/lock.py.
#   pip install torch=={torch}
#   pip install --require-hashes --no-deps -r requirements.lock
#   pip install --no-deps .
"""


def pins() -> dict[str, str]:
    """Version by name of everything in constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def checksums(wanted: dict[str, str]) -> dict[str, str]:
    """sha256 by name of the files pip would install."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--no-deps", "--only-binary", ":all:", "--report", str(report)]
        subprocess.run([*command, *(f"{name}=={version}" for name, version in wanted.items())], check=True)
        content = json.loads(report.read_text(encoding="utf-8"))
    found = {
        item["metadata"]["name"].lower().replace("_", "-").replace(".", "-"): item["download_info"][
            "archive_info"
        ]["hashes"]["sha256"]
        for item in content["install"]
    }
    return {name: found[name.lower().replace("_", "-").replace(".", "-")] for name in wanted}


def main() -> None:
    wanted = pins()
    torch = wanted.pop("torch")
    sums = checksums(wanted)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    lines = [HEAD.format(python=python, platform=sys.platform, torch=torch)]
    lines += [f"{name}=={version} \\\n    --hash=sha256:{sums[name]}\n" for name, version in wanted.items()]
    (ROOT / "requirements.lock").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
