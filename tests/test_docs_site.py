"""Test the documentation site: it builds strictly, shows the API, and loads nothing from the network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import selfmark

ROOT = Path(__file__).parent.parent

pytest.importorskip("material")
pytest.importorskip("mkdocstrings")


def _build_site(root: Path, output: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(root / "mkdocs.yml")]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        [*command, "--site-dir", str(output)], capture_output=True, text=True, env=environment
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("site")
    result = _build_site(ROOT, output)
    assert result.returncode == 0, result.stderr
    return output


class _Resources(HTMLParser):
    """A parser that collects the addresses that a browser fetches when it opens a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.addresses += [values["src"] or ""] if "src" in values else []
        if tag == "link" and values.get("rel") != "canonical":
            self.addresses.append(values.get("href") or "")


def test_pages_load_nothing_from_the_network(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        parser = _Resources()
        parser.feed(page.read_text(encoding="utf-8"))
        assert parser.addresses
        assert [address for address in parser.addresses if re.match(r"(\w+:)?//", address)] == [], page.name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", sheet.read_text(encoding="utf-8"))


def test_the_api_page_lists_every_public_name(site: Path) -> None:
    anchors = set(re.findall(r'id="(selfmark[^"]*)"', (site / "api.html").read_text(encoding="utf-8")))
    assert {f"selfmark.{name}" for name in selfmark.__all__} - anchors == set()
    assert {"selfmark.Detector.__call__", "selfmark.Landmarks.xy"} <= anchors
    assert [name for name in anchors if name.split(".")[-1].startswith("_") and "__" not in name] == []


def test_files_from_outside_docs_are_part_of_the_site(site: Path) -> None:
    for name in ("readme", "contributing", "changelog", "security", "license"):
        assert (site / "project" / f"{name}.html").exists()
    assert (site / "repository" / "examples" / "onnx_predict.py").exists()
    assert 'href="project/readme.html"' in (site / "index.html").read_text(encoding="utf-8")


def test_broken_links_and_anchors_fail_the_build(tmp_path: Path) -> None:
    """Build a copy of the site to which three broken links were added."""
    root = tmp_path / "repository"
    shutil.copytree(ROOT / "docs", root / "docs")
    shutil.copytree(ROOT / "examples", root / "examples")
    for name in ("mkdocs.yml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "LICENSE"):
        shutil.copy(ROOT / name, root / name)
    (root / "src").symlink_to(ROOT / "src")
    with (root / "docs" / "faq.md").open("a", encoding="utf-8") as page:
        page.write("\n[a](missing.md) [b](../missing.txt) [c](../README.md#missing)\n")
    result = _build_site(root, tmp_path / "site")
    assert result.returncode != 0
    for target in ("missing.md", "../missing.txt", "project/readme.md#missing"):
        assert f"'{target}'" in result.stderr
