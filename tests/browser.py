"""Pages in a real Chromium: finding one, and what is wrong with a page that it shows.

`python -m tests.browser` prints the Chromium the tests would use, or fails and prints how to get one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

ENABLE = (
    "install Chromium (apt-get install chromium, or playwright install chromium) to run the browser tests"
)
_COMMANDS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

# A picture that did not load, and a page wider than its window.
_BROKEN_PICTURES = """() => [...document.images].filter(image => !image.complete || image.naturalWidth === 0)
    .map(image => image.alt || image.src.slice(0, 60))"""
_WIDTHS = "() => [document.documentElement.scrollWidth, window.innerWidth]"
# What a text did, or the element that it became: that is there at once, also where it has not run yet.
_ATTACKED = "() => window.attacked !== undefined || document.querySelector('[onerror], [onload]') !== null"


def find_chromium() -> str | None:
    """A Chromium that starts: of the system, else playwright's own."""
    for command in _COMMANDS:
        path = shutil.which(command)
        if path is not None and _starts(path):  # Ubuntu's packages may be stubs that only ask for snap
            return path
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    return own if Path(own).exists() and _starts(own) else None


def _starts(path: str) -> bool:
    try:
        return subprocess.run([path, "--version"], capture_output=True, timeout=30).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def require_chromium() -> str:
    """A Chromium; without one the test is skipped, but fails where CI says that there must be one."""
    chromium = find_chromium()
    if chromium is not None:
        return chromium
    if os.environ.get("CI"):
        pytest.fail(ENABLE)
    pytest.skip(ENABLE)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A playwright Browser."""
    chromium = require_chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # playwright leaves the sandbox off, as root needs; the tests open only pages they have written.
        started = playwright.chromium.launch(executable_path=chromium, args=["--disable-gpu"])
        yield started
        started.close()


@dataclass
class Visit:
    """An open page and what it has complained about so far."""

    page: Any
    complaints: list[str] = field(default_factory=list)

    def problems(self) -> list[str]:
        """Everything wrong with the page as it is now; empty for a good one."""
        found = [f"picture does not load: {name}" for name in self.page.evaluate(_BROKEN_PICTURES)]
        width, window = self.page.evaluate(_WIDTHS)
        if width > window:
            found.append(f"the page is {width} pixels wide in a window of {window}")
        return self.complaints + found

    def attacked(self) -> bool:
        """Whether a text of the user that sets `window.attacked` has run, or has become what will run."""
        return bool(self.page.evaluate(_ATTACKED))


@contextmanager
def visit(browser: Any, place: Path | str, width: int = 1280, **context: Any) -> Iterator[Visit]:
    """Open a file of this disk, or the address of a server, in a window of its own.

    Console errors (which include what the content security policy refuses), script errors, dialogs, and every
    request but for the file itself, the server that was named and data addresses count as complaints.
    Further arguments are playwright's of a context.
    """
    address = place if isinstance(place, str) else place.resolve().as_uri()
    own = address.split("?")[0] if isinstance(place, str) else None
    window = browser.new_context(viewport={"width": width, "height": 800}, **context)
    try:
        page = window.new_page()
        seen = Visit(page)
        complain = seen.complaints.append

        def on_console(message: Any) -> None:
            if message.type in ("error", "warning"):
                complain(f"console: {message.text}")

        def on_request(request: Any) -> None:
            known = request.url == address if own is None else request.url.startswith(own)
            if not known and not request.url.startswith("data:"):
                complain(f"request: {request.url}")

        def on_dialog(dialog: Any) -> None:
            complain(f"dialog: {dialog.message}")
            dialog.dismiss()

        page.on("console", on_console)
        page.on("pageerror", lambda error: complain(f"script: {error}"))
        page.on("request", on_request)
        page.on("requestfailed", lambda request: complain(f"request failed: {request.url[:400]}"))
        page.on("dialog", on_dialog)
        page.goto(address, wait_until="load")
        yield seen
    finally:
        window.close()


def screenshot(page: Any) -> np.ndarray:
    """The whole page as it looks, [H, W, 3] uint8 RGB."""
    encoded = np.frombuffer(page.screenshot(full_page=True), np.uint8)
    picture = cv2.imdecode(encoded, cv2.IMREAD_COLOR)
    assert picture is not None
    return picture[..., ::-1]


def cut_out(picture: np.ndarray, box: dict[str, float]) -> np.ndarray:
    """The part of a screenshot inside a box of playwright's (page not scrolled)."""
    left, top = round(box["x"]), round(box["y"])
    return picture[top : top + round(box["height"]), left : left + round(box["width"])]


if __name__ == "__main__":
    chromium = find_chromium()
    print(chromium or ENABLE)
    sys.exit(0 if chromium else 1)
