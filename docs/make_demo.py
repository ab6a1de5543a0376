"""Draw docs/images/demo.jpg: landmarks of the included demo detector in images it was not trained on.

Usage: python docs/make_demo.py
"""

from __future__ import annotations

from pathlib import Path

import cv2

import selfmark
from selfmark.demo.demo_run import SIZE, TEST_IMAGES, TEST_SEED
from selfmark.demo.scene import generate_scene
from selfmark.report.landmark_pictures import Picture, draw_contact_sheet

PATH = Path(__file__).parent / "images" / "demo.jpg"
NUM_IMAGES, NUM_COLUMNS = 12, 6
WIDTH = 1704  # pixels of the picture


def draw_picture() -> Picture:
    """Return a contact sheet [H, W, 3] RGB of the first test images of the demo with their landmarks."""
    images = generate_scene(TEST_IMAGES, SIZE, TEST_SEED).images[:NUM_IMAGES]
    sheet = draw_contact_sheet(images, selfmark.load("demo")(list(images)).xy, NUM_COLUMNS)
    height = round(sheet.shape[0] * WIDTH / sheet.shape[1])
    return cv2.resize(sheet, (WIDTH, height), interpolation=cv2.INTER_AREA).astype("uint8")


if __name__ == "__main__":
    cv2.imwrite(str(PATH), draw_picture()[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 88])
