"""Regenerate requirements.lock: every package of constraints.txt except torch, with its checksum.

    python scripts/lock.py

For each package, the script asks pip which file it would install on this platform, and for the sha256 of this
file. Nothing is installed, and the lock file contains no addresses. The lock is valid only for the platform
on which you run this script, so run it where the tests run. torch is left out because its builds differ by
platform and accelerator.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
HEADER = """\
# Tested versions and checksums for CPython {python} on {platform}, without torch. Made by scripts/lock.py.
#   pip install torch=={torch}
#   pip install --require-hashes --no-deps -r requirements.lock
#   pip install --no-deps .
"""


def read_pins() -> dict[str, str]:
    """Return the pinned version of every package in constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def fetch_checksums(pins: dict[str, str]) -> dict[str, str]:
    """Return the sha256 of the file that pip would install for each package."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--no-deps", "--only-binary", ":all:", "--report", str(report)]
        subprocess.run([*command, *(f"{name}=={version}" for name, version in pins.items())], check=True)
        content = json.loads(report.read_text(encoding="utf-8"))
    checksums = {
        _normalize(item["metadata"]["name"]): item["download_info"]["archive_info"]["hashes"]["sha256"]
        for item in content["install"]
    }
    return {name: checksums[_normalize(name)] for name in pins}


def _normalize(name: str) -> str:
    """Return the normalized spelling of a package name, which is the same for all spellings pip accepts."""
    return name.lower().replace("_", "-").replace(".", "-")


def main() -> None:
    """Write requirements.lock."""
    pins = read_pins()
    torch = pins.pop("torch")
    checksums = fetch_checksums(pins)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    lines = [HEADER.format(python=python, platform=sys.platform, torch=torch)]
    lines += [
        f"{name}=={version} \\\n    --hash=sha256:{checksums[name]}\n" for name, version in pins.items()
    ]
    (ROOT / "requirements.lock").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
