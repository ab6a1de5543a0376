"""Publish files from outside docs/ in the MkDocs site, and rewrite links to them.

Pages link to files of the repository by relative paths, so that links also work in an editor and on a code
host. README.md and other files of the repository root become pages under project/. Any other file outside
docs/ that a page links to is copied into the site, under repository/.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
# Mapping from files of the repository root to pages of the site.
ROOT_PAGES = {
    "README.md": "project/readme.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security.md",
    "LICENSE": "project/license.md",
}
# Matches a fenced code block, in which nothing is a link, or else a link.
FENCE_OR_LINK = re.compile(
    r"(?P<fence>^```.*?^```)|\[(?P<text>[^\]]*)\]\((?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)",
    flags=re.MULTILINE | re.DOTALL,
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file in `ROOT_PAGES`."""
    for name, uri in ROOT_PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        if not name.endswith(".md"):
            text = f"# {name.capitalize()}\n\n```text\n{text}```\n"
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links that leave docs/, so that MkDocs can resolve and check them."""
    uri = page.file.src_uri
    sources = {target: name for name, target in ROOT_PAGES.items()}
    source = ROOT / sources[uri] if uri in sources else DOCS / uri

    def rewrite(match: re.Match[str]) -> str:
        if match["fence"] or "://" in match["path"] or match["path"].startswith("mailto:"):
            return match[0]
        target = (source.parent / match["path"]).resolve()
        if source.is_relative_to(DOCS) and target.is_relative_to(DOCS):
            return match[0]
        if target.is_dir():
            return match["text"]
        if not target.is_file() or not target.is_relative_to(ROOT):
            return match[0]  # MkDocs reports it as broken
        link = posixpath.relpath(_publish(target, config, files), posixpath.dirname(uri))
        return f"[{match['text']}]({link}{match['anchor'] or ''})"

    return FENCE_OR_LINK.sub(rewrite, markdown)


def _publish(path: Path, config: MkDocsConfig, files: Files) -> str:
    """Return the path of a repository file within the site; add the file to the site if necessary."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    name = path.relative_to(ROOT).as_posix()
    if name in ROOT_PAGES:
        return ROOT_PAGES[name]
    uri = f"repository/{name}"
    if files.get_file_from_path(uri) is None:
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return uri
