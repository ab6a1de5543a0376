"""Take the screenshot docs/images/naming.jpg: the naming page with the demo's toy animals.

Usage: python docs/make_naming.py (needs Playwright and Chromium)
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path

import cv2

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from playwright.sync_api import sync_playwright  # noqa: E402

import selfmark  # noqa: E402
from selfmark.demo.scene import generate_scene  # noqa: E402
from selfmark.local_page.page_server import open_socket  # noqa: E402
from selfmark.naming.card_editor import CardEditor  # noqa: E402
from selfmark.naming.edits import Edit, SetColor, SetEdge, SetHidden, SetName, SetPartner  # noqa: E402
from selfmark.naming.server import build_naming_server, prepare_shown_images  # noqa: E402
from selfmark.naming.shown_images import select_shown_images  # noqa: E402
from tests.browser import find_chromium  # noqa: E402

NAMES = {
    3: "right ear",
    12: "left ear",
    9: "forehead",
    11: "right muzzle",
    0: "left muzzle",
    5: "chin",
    10: "right shoulder",
    8: "left shoulder",
    1: "right arm",
    14: "left arm",
    2: "belly",
    4: "right foot",
    7: "left foot",
}
EDGES = [(3, 9), (12, 9), (10, 5), (8, 5), (10, 1), (8, 14), (5, 2), (2, 4), (2, 7)]
MIRROR_PAIRS = [(3, 12), (11, 0), (10, 8), (1, 14), (4, 7)]


def list_screenshot_edits() -> list[Edit]:
    """Return the edits that the screenshot shows."""
    return [
        *(SetName(landmark, name) for landmark, name in NAMES.items()),
        *(SetEdge(a, b, True) for a, b in EDGES),
        *(SetPartner(a, b) for a, b in MIRROR_PAIRS),
        *(SetHidden(landmark, True) for landmark in (6, 13, 15)),
        SetColor(3, "#d55e00"),
        SetColor(12, "#0072b2"),
    ]


def main() -> None:
    """Start the naming server on generated images and take the screenshot."""
    with tempfile.TemporaryDirectory() as temporary:
        run_folder, photos = Path(temporary) / "toy animals", Path(temporary) / "photos"
        photos.mkdir()
        for index, image in enumerate(generate_scene(24, 384, seed=5).images):
            cv2.imwrite(str(photos / f"animal {index:02d}.jpg"), image[..., ::-1])
        selfmark.load("demo").save(run_folder / "model")
        editor = CardEditor(run_folder / "model")
        editor.edit(list_screenshot_edits())
        images = prepare_shown_images(run_folder, select_shown_images(run_folder, [str(photos)], 24), "cpu")
        with open_socket(0) as listener:
            address, server = build_naming_server(run_folder, editor, editor.read(), images, listener)
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
            thread.start()
            while not server.started:
                time.sleep(0.01)
            _take_screenshot(address, ROOT / "docs" / "images" / "naming.jpg")
            server.should_exit = True
            thread.join()


def _take_screenshot(address: str, path: Path) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 820})
        page.goto(address)
        page.wait_for_selector(".point")
        page.click(".entry[data-landmark='3']")
        page.wait_for_load_state("networkidle")
        page.screenshot(path=path, type="jpeg", quality=82)
        browser.close()


if __name__ == "__main__":  # required: prediction runs in a child process that imports this file
    main()
