"""What the server answers: the page, what there is to see, and edits. Images go by their number alone.

What takes a few milliseconds is answered at once; pictures and edits are the work of a few threads. A thread
for every request, as is usual, would keep far more memory.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import Body, FastAPI, HTTPException, Query, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from starlette.types import ASGIApp

from selfmark._version import __version__
from selfmark.errors import InputError
from selfmark.images.decode import UnreadableImage
from selfmark.model.card import ModelCard
from selfmark.model.colors import landmark_colors, palette
from selfmark.naming.access_guard import AccessGuard
from selfmark.naming.card_editor import CardEditor, card_revision
from selfmark.naming.edits import LONGEST_NAME, edits_from_json, edits_to_json
from selfmark.naming.image_renderer import CROP_SHARE, ImageRenderer
from selfmark.naming.shown_images import ShownImages

_PAGE = Path(__file__).parent / "page"
_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FILES = {path.name: _KINDS[path.suffix] for path in _PAGE.iterdir() if path.suffix in _KINDS}
_MOST = 200  # images or cut-outs in one answer
_MAKERS = min(3, os.cpu_count() or 1)  # threads that make pictures
_FRESH = {"cache-control": "no-store"}
_KEEP = {"cache-control": "private, max-age=3600"}

Order = Literal["mixed", "surest", "least"]


def build_app(
    title: str,
    ledger: CardEditor,
    shown: ShownImages,
    notes: Callable[[ModelCard], list[str]],
    token: str,
    port: int,
) -> ASGIApp:
    """The application, guarded.

    Args:
        title: what the page is called.
        ledger: where names are kept.
        shown: the images.
        notes: sentences the user should see, given the card as it is.
        token: what a browser must know.
        port: where the server listens.
    """
    app = FastAPI(title="selfmark", docs_url=None, redoc_url=None, openapi_url=None)
    _add_page(app)
    pictures = hashlib.sha256(token.encode()).hexdigest()[:12]  # other in each start, as the images may be
    about = {"title": title, "version": __version__, "images": len(shown), "pictures": pictures}
    _add_names(app, about, ledger, notes)
    _add_images(app, shown, ImageRenderer(shown, ledger.read().images.max_megapixels))

    @app.exception_handler(InputError)
    def refused(request: Request, error: InputError) -> JSONResponse:
        return JSONResponse({"error": str(error)}, 409, _FRESH)

    @app.exception_handler(UnreadableImage)
    def unreadable(request: Request, error: UnreadableImage) -> JSONResponse:
        return JSONResponse({"error": f"the image cannot be read: {error}"}, 404, _FRESH)

    return AccessGuard(app, token, port)


def _add_page(app: FastAPI) -> None:
    @app.get("/")
    async def index() -> FileResponse:
        return FileResponse(_PAGE / "index.html", headers=_FRESH)

    @app.get("/page/{name}")
    async def part(name: str) -> FileResponse:
        if name not in _FILES:
            raise HTTPException(404)
        return FileResponse(_PAGE / name, media_type=_FILES[name], headers={"cache-control": "no-cache"})


# --- names -------------------------------------------------------------------------------------------


def _add_names(
    app: FastAPI, about: dict[str, Any], ledger: CardEditor, notes: Callable[[ModelCard], list[str]]
) -> None:
    def said(card: ModelCard) -> dict[str, Any]:
        return {
            "revision": card_revision(card),
            "names": card.names,
            "mirror": card.mirror,
            "skeleton": card.skeleton,
            "colors": landmark_colors(card),
            "hidden": card.hidden,
            "confirmed": card.confirmed,
            "notes": notes(card),
        }

    @app.get("/api/run")
    async def run() -> JSONResponse:
        landmarks = len(ledger.read().names)
        limits = {"landmarks": landmarks, "longest_name": LONGEST_NAME, "usual_colors": palette(landmarks)}
        return JSONResponse(about | limits, headers=_FRESH)

    @app.get("/api/names")
    async def names(known: str = "") -> Response:
        """All that was said; nothing if the asker knows it already."""
        card = ledger.read()
        if known == card_revision(card):
            return Response(status_code=204, headers=_FRESH)
        return JSONResponse(said(card), headers=_FRESH)

    writer = ThreadPoolExecutor(
        1, thread_name_prefix="edits"
    )  # a disk may take its time; others need not wait

    @app.post("/api/edits")
    async def edit(edits: Annotated[Any, Body(embed=True)]) -> JSONResponse:
        wanted = edits_from_json(edits)
        card, back = await asyncio.get_running_loop().run_in_executor(writer, ledger.edit, wanted)
        return JSONResponse(said(card) | {"back": edits_to_json(back)}, headers=_FRESH)


# --- images ------------------------------------------------------------------------------------------


def _add_images(app: FastAPI, shown: ShownImages, pictures: ImageRenderer) -> None:
    count, landmarks = shown.score.shape

    def require(row: int, landmark: int = 0) -> None:
        if not (0 <= row < count and 0 <= landmark < landmarks):
            raise HTTPException(404)

    @app.get("/api/images")
    async def images(
        start: Annotated[int, Query(ge=0)] = 0, most: Annotated[int, Query(ge=1, le=_MOST)] = 24
    ) -> JSONResponse:
        rows = range(start, min(start + most, count))
        return JSONResponse({"of": count, "images": [_image(shown, pictures, row) for row in rows]})

    @app.get("/api/gallery/{landmark}")
    async def gallery(
        landmark: int,
        order: Order = "mixed",
        start: Annotated[int, Query(ge=0)] = 0,
        most: Annotated[int, Query(ge=1, le=_MOST)] = 24,
    ) -> JSONResponse:
        require(0, landmark)
        rows = _ordered(shown.score[:, landmark], order)[start : start + most].tolist()
        found = [{"row": row, "score": round(float(shown.score[row, landmark]), 3)} for row in rows]
        return JSONResponse({"of": count, "share": CROP_SHARE, "crops": found})

    # Few threads make pictures: each holds a decoded original, and keeps its share of memory for the next.
    makers = ThreadPoolExecutor(_MAKERS, thread_name_prefix="picture")

    async def jpeg(make: Callable[..., bytes], *which: int) -> Response:
        content = await asyncio.get_running_loop().run_in_executor(makers, make, *which)
        return Response(content, media_type="image/jpeg", headers=_KEEP)

    @app.get("/pictures/{row}/large")
    async def large(row: int) -> Response:
        require(row)
        return await jpeg(pictures.large, row)

    @app.get("/pictures/{row}/tile")
    async def tile(row: int) -> Response:
        require(row)
        return await jpeg(pictures.tile, row)

    @app.get("/pictures/{row}/landmark/{landmark}")
    async def crop(row: int, landmark: int) -> Response:
        require(row, landmark)
        return await jpeg(pictures.crop, row, landmark)


def _image(shown: ShownImages, pictures: ImageRenderer, row: int) -> dict[str, Any]:
    left, top, right, bottom = pictures.view(row)
    return {
        "row": row,
        # Names that are no valid text on this disk hold halves of characters, which JSON cannot carry.
        "name": shown.refs[row].name.encode("utf-8", errors="replace").decode(),
        "view": [left, top, right - left, bottom - top],
        "xy": np.round(shown.xy[row].astype(float) + 0.5, 1).tolist(),  # counted from corners, as screens do
        "score": np.round(shown.score[row].astype(float), 3).tolist(),
    }


def _ordered(score: np.ndarray[Any, Any], order: Order) -> np.ndarray[Any, Any]:
    """Rows in the order a gallery shows them; mixed steps through all images again and again."""
    if order == "surest":
        return np.argsort(-score, kind="stable")
    if order == "least":
        return np.argsort(score, kind="stable")
    step = max(1, len(score) // 24)
    rows = np.arange(len(score))
    return rows[np.lexsort((rows, rows % step))]
