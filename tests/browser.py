"""Drive Chromium in the browser tests: find it, open pages, and collect their problems.

`python -m tests.browser` prints the path of the Chromium that the tests use, or how to install one.
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

HOW_TO_INSTALL = (
    "install Chromium (apt-get install chromium, or playwright install chromium) to run the browser tests"
)
_COMMANDS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

# Scripts for the page. They return the names of images that did not load, and the widths of page and window.
_BROKEN_IMAGES = """() => [...document.images].filter(image => !image.complete || image.naturalWidth === 0)
    .map(image => image.alt || image.src.slice(0, 60))"""
_WIDTHS = "() => [document.documentElement.scrollWidth, window.innerWidth]"
# True if an injected script has run, or if the page has an injected element whose script will run.
_ATTACKED = "() => window.attacked !== undefined || document.querySelector('[onerror], [onload]') !== null"


def find_chromium() -> str | None:
    """Return the path of a Chromium that starts: the system's, or else one that Playwright downloaded."""
    for command in _COMMANDS:
        path = shutil.which(command)
        if path is not None and _can_start(path):  # on Ubuntu, the command may only ask to install a snap
            return path
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    with sync_playwright() as playwright:
        downloaded = playwright.chromium.executable_path
    return downloaded if Path(downloaded).exists() and _can_start(downloaded) else None


def _can_start(path: str) -> bool:
    try:
        return subprocess.run([path, "--version"], capture_output=True, timeout=30).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def require_chromium() -> str:
    """Return the path of Chromium; without one, skip the test, or fail it in CI."""
    chromium = find_chromium()
    if chromium is not None:
        return chromium
    if os.environ.get("CI"):
        pytest.fail(HOW_TO_INSTALL)
    pytest.skip(HOW_TO_INSTALL)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Yield a Playwright browser."""
    chromium = require_chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Playwright turns Chromium's sandbox off. This is necessary, because Chromium does not start with
        # the sandbox as root, and safe, because the tests open only their own pages.
        started = playwright.chromium.launch(executable_path=chromium, args=["--disable-gpu"])
        yield started
        started.close()


@dataclass
class Visit:
    """An open page and the complaints it has caused so far."""

    page: Any
    complaints: list[str] = field(default_factory=list)

    def find_problems(self) -> list[str]:
        """Return the complaints so far and what is wrong with the page now."""
        problems = [f"image does not load: {name}" for name in self.page.evaluate(_BROKEN_IMAGES)]
        width, window = self.page.evaluate(_WIDTHS)
        if width > window:
            problems.append(f"the page is {width} pixels wide in a window of {window}")
        return self.complaints + problems

    def was_attacked(self) -> bool:
        """Return True if user text that sets `window.attacked` has run or will run."""
        return bool(self.page.evaluate(_ATTACKED))


@contextmanager
def visit(browser: Any, target: Path | str, width: int = 1280, **context: Any) -> Iterator[Visit]:
    """Open a local file or the address of a server in a new window.

    Console errors and warnings (including violations of the content security policy), script errors, dialogs,
    failed requests, and requests to anything but this file or server are recorded as complaints. Further
    keyword arguments are passed to Playwright's `new_context`.
    """
    address = target if isinstance(target, str) else target.resolve().as_uri()
    server = address.split("?")[0] if isinstance(target, str) else None
    window = browser.new_context(viewport={"width": width, "height": 800}, **context)
    try:
        page = window.new_page()
        visited = Visit(page)
        complain = visited.complaints.append

        def on_console(message: Any) -> None:
            if message.type in ("error", "warning"):
                complain(f"console: {message.text}")

        def on_request(request: Any) -> None:
            is_own = request.url == address if server is None else request.url.startswith(server)
            if not is_own and not request.url.startswith("data:"):
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
        yield visited
    finally:
        window.close()


def take_screenshot(page: Any) -> np.ndarray:
    """Return a screenshot of the whole page, [H, W, 3] uint8 RGB."""
    encoded = np.frombuffer(page.screenshot(full_page=True), np.uint8)
    image = cv2.imdecode(encoded, cv2.IMREAD_COLOR)
    assert image is not None
    return image[..., ::-1]


def crop_screenshot(image: np.ndarray, box: dict[str, float]) -> np.ndarray:
    """Return the part of a screenshot inside a Playwright bounding box; the page must not be scrolled."""
    left, top = round(box["x"]), round(box["y"])
    return image[top : top + round(box["height"]), left : left + round(box["width"])]


if __name__ == "__main__":
    chromium = find_chromium()
    print(chromium or HOW_TO_INSTALL)
    sys.exit(0 if chromium else 1)
