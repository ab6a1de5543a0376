"""Make a model folder with a few images but no weights, and serve the naming page of this folder."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
from PIL import Image

from selfmark.config import Images, Network
from selfmark.image_ref import ImageRef
from selfmark.local_page.page_server import open_socket
from selfmark.model.card import ModelCard, write_card
from selfmark.naming.app import Tool
from selfmark.naming.card_editor import CardEditor
from selfmark.naming.server import build_naming_server
from selfmark.naming.shown_images import ShownImages

K = 6  # landmarks
CARD = ModelCard(
    names=tuple(f"landmark_{index}" for index in range(K)),
    mirror=(1, 0, 2, 4, 3, 5),
    skeleton=(),
    images=Images(size=64),
    network=Network(),
    refine="parabola",
    flip_test=True,
    provenance={"seed": 0},
)
WRITE_HEADERS = {"x-selfmark": "1"}


def make_toy_folder(
    folder: Path, card: ModelCard = CARD, images: int = 5, name: str = "image {}.jpg"
) -> ShownImages:
    """Write model/model.json and images of 120 x 80 pixels with white squares at the landmarks."""
    (folder / "model").mkdir(parents=True)
    (folder / "images").mkdir()
    write_card(card, folder / "model")
    rng = np.random.default_rng(0)
    landmarks = len(card.names)
    # The landmarks are on a grid, far enough apart to tap each of them on a touch screen.
    columns, rows = np.meshgrid([20, 60, 100], [22, 58])
    grid = np.stack([columns.ravel(), rows.ravel()], axis=1)[np.arange(landmarks) % 6]
    xy = grid + rng.uniform(-4, 4, (images, landmarks, 2))
    refs = []
    for row in range(images):
        pixels = np.full((80, 120, 3), 40 + 30 * row % 200, np.uint8)
        for x, y in xy[row]:
            pixels[round(y) - 2 : round(y) + 3, round(x) - 2 : round(x) + 3] = (250, 250, 250)
        path = folder / "images" / name.format(row)
        Image.fromarray(pixels).save(path, format="JPEG", quality=95)
        refs.append(ImageRef(path))
    return ShownImages(
        refs=tuple(refs),
        sizes=np.tile([120, 80], (images, 1)).astype(np.int64),
        regions=np.tile([0.0, -20.0, 120.0, 120.0], (images, 1)),
        xy=xy.astype(np.float32),
        score=rng.random((images, landmarks)).astype(np.float32),
        frames=(None,) * images,
    )


@dataclass(frozen=True)
class ToyServer:
    """A running server: the address with the token, the origin without it, and a client with the cookie."""

    folder: Path
    address: str
    origin: str
    client: httpx.Client

    def edit(self, *edits: dict[str, object]) -> httpx.Response:
        return self.client.post("/api/edits", json={"edits": list(edits)}, headers=WRITE_HEADERS)

    def correct(self, *edits: dict[str, object]) -> httpx.Response:
        return self.client.post("/api/corrections", json={"edits": list(edits)}, headers=WRITE_HEADERS)


@contextmanager
def serve(folder: Path, shown: ShownImages, tool: Tool = "select") -> Iterator[ToyServer]:
    """Serve the naming page of a folder with uvicorn on a free port."""
    with open_socket(0) as listener:
        editor = CardEditor(folder / "model")
        address, server = build_naming_server(folder, editor, editor.read(), shown, listener, tool)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            origin = address.split("/?")[0]
            with httpx.Client(base_url=origin, timeout=20, follow_redirects=True) as client:
                assert client.get(address).status_code == 200
                yield ToyServer(folder, address, origin, client)
        finally:
            server.should_exit = True
            thread.join(20)
