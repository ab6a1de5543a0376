"""Build the HTTP application of the naming page: the page, the model card, edits, corrections and images.

Quick responses are computed on the event loop. A few threads render images and write edits. Many threads, the
default of FastAPI, would use far more memory.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import Body, FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.types import ASGIApp

from selfmark._version import __version__
from selfmark.images.decode import UnreadableImage
from selfmark.local_page.page_files import NO_STORE, AsciiJSONResponse, add_error_reports, add_page
from selfmark.model.card import (
    GOOD_TRUST,
    MIN_TRUST,
    ModelCard,
    landmarks_without_partner,
)
from selfmark.model.colors import landmark_colors, palette
from selfmark.naming.card_editor import CardEditor, compute_card_revision
from selfmark.naming.corrections import (
    Correction,
    CorrectionFile,
    corrections_from_json,
    corrections_to_json,
    get_object_key,
)
from selfmark.naming.edits import edits_from_json, edits_to_json
from selfmark.naming.image_renderer import ImageRenderer
from selfmark.naming.shown_images import ShownImages
from selfmark.run.json_schema import MAX_NAME_LENGTH

_PAGE = Path(__file__).parent / "page"
_MAX_LIMIT = 200  # largest number of images or crops in one response
_PAGE_LENGTH = 24  # images or crops in one response if the request gives no limit
_RENDER_THREADS = min(3, os.cpu_count() or 1)
_CACHE_ONE_HOUR = {"cache-control": "private, max-age=3600"}

Order = Literal["mixed", "highest", "lowest"]
Tool = Literal["select", "correct"]


def build_app(
    title: str,
    editor: CardEditor,
    shown: ShownImages,
    corrections: CorrectionFile,
    notes: Callable[[ModelCard], list[str]],
    tool: Tool,
    token: str,
) -> ASGIApp:
    """Return the application.

    Args:
        title: Title of the page.
        editor: Reads and writes the model card.
        shown: Images with their landmarks.
        corrections: Reads and writes corrected landmarks.
        notes: Returns messages for the user, given the current card.
        tool: Tool that is active when the page opens.
        token: Secret of the server; the session id is derived from it.
    """
    app = FastAPI(title="selfmark", docs_url=None, redoc_url=None, openapi_url=None)
    add_page(app, _PAGE)
    # Every start of the server is a new session: after a restart, image numbers may stand for other images.
    session = hashlib.sha256(token.encode()).hexdigest()[:12]
    about = {"title": title, "version": __version__, "images": len(shown), "session": session}
    about |= {"tool": tool, "corrections": str(corrections.path)}
    _add_card_routes(app, about, editor, PageCorrections(corrections, shown), notes)
    _add_image_routes(app, shown, ImageRenderer(shown, editor.read().images.max_megapixels))

    add_error_reports(app)

    @app.exception_handler(RequestValidationError)
    def report_invalid_request(request: Request, error: RequestValidationError) -> AsciiJSONResponse:
        problems = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()[:3]]
        return AsciiJSONResponse({"error": "; ".join(problems)}, 422, NO_STORE)

    @app.exception_handler(UnreadableImage)
    def report_unreadable_image(request: Request, error: UnreadableImage) -> AsciiJSONResponse:
        return AsciiJSONResponse({"error": f"the image cannot be read: {error}"}, 404, NO_STORE)

    return app


# --- model card --------------------------------------------------------------------------------------


def _add_card_routes(
    app: FastAPI,
    about: dict[str, Any],
    editor: CardEditor,
    corrections: PageCorrections,
    notes: Callable[[ModelCard], list[str]],
) -> None:
    def card_to_json(card: ModelCard) -> dict[str, Any]:
        return {
            "revision": compute_revision(card),
            "corrections": corrections.to_json(len(card.names)),
            "names": card.names,
            "mirror": card.mirror,
            "without_partner": [
                index for index in landmarks_without_partner(card) if index not in card.confirmed
            ],
            "skeleton": card.skeleton,
            "colors": landmark_colors(card),
            "hidden": card.hidden,
            "confirmed": card.confirmed,
            "notes": notes(card),
        }

    def compute_revision(card: ModelCard) -> str:
        return compute_card_revision(card) + corrections.file.revision()

    @app.get("/api/run")
    async def get_run() -> AsciiJSONResponse:
        card = editor.read()
        constants = {
            "landmarks": len(card.names),
            "max_name_length": MAX_NAME_LENGTH,
            "default_colors": palette(len(card.names)),
            "trust": card.trust,
            "min_trust": MIN_TRUST,
            "good_trust": GOOD_TRUST,
            "verdict": card.verdict,
        }
        return AsciiJSONResponse(about | constants, headers=NO_STORE)

    @app.get("/api/card")
    async def get_card(revision: str = "") -> Response:
        """Return the card, or nothing (204) if the client already has this revision."""
        card = editor.read()
        if revision == compute_revision(card):
            return Response(status_code=204, headers=NO_STORE)
        return AsciiJSONResponse(card_to_json(card), headers=NO_STORE)

    # Edits are written in a thread of their own, because a slow disk must not block other requests.
    writer = ThreadPoolExecutor(1, thread_name_prefix="edits")

    @app.post("/api/edits")
    async def post_edits(edits: Annotated[Any, Body(embed=True)]) -> AsciiJSONResponse:
        try:
            json.dumps(edits, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise HTTPException(400, "the edits contain text that is not valid Unicode") from error
        except RecursionError as error:
            raise HTTPException(400, "the edits are nested too deeply") from error
        parsed = edits_from_json(edits)
        card, undo = await asyncio.get_running_loop().run_in_executor(writer, editor.edit, parsed)
        return AsciiJSONResponse(card_to_json(card) | {"undo": edits_to_json(undo)}, headers=NO_STORE)

    @app.post("/api/corrections")
    async def post_corrections(edits: Annotated[Any, Body(embed=True)]) -> AsciiJSONResponse:
        parsed, card = corrections_from_json(edits), editor.read()
        undo = await asyncio.get_running_loop().run_in_executor(writer, corrections.edit, parsed, card)
        return AsciiJSONResponse(card_to_json(card) | {"undo": corrections_to_json(undo)}, headers=NO_STORE)


class PageCorrections:
    """Corrections of the images that the page shows; rows are image numbers of the page."""

    def __init__(self, file: CorrectionFile, shown: ShownImages) -> None:
        """Combine the file of corrections with the images that the page shows."""
        self.file = file
        self._shown = shown
        self._sizes: list[tuple[int, int]] = [(width, height) for width, height in shown.sizes.tolist()]
        self._predicted: list[list[tuple[float, float]]] = [
            [(x, y) for x, y in landmarks] for landmarks in np.round(shown.xy.astype(float), 2).tolist()
        ]
        self._rows_by_key = {get_object_key(ref): row for row, ref in enumerate(shown.refs)}

    def edit(self, edits: list[Correction], card: ModelCard) -> list[Correction]:
        """Apply edits and write the file; return the edits that undo the change."""
        return self.file.edit(edits, card, self._shown.refs, self._sizes, self._predicted)

    def to_json(self, num_landmarks: int) -> dict[int, dict[str, Any]]:
        """Map the rows of shown images to their corrections, as JSON values."""
        by_row: dict[int, dict[str, Any]] = {}
        for item in self.file.read(num_landmarks):
            row = self._rows_by_key.get(get_object_key(item.ref))
            if row is not None:
                places = item.correction.places.items()
                by_row[row] = {
                    "done": item.correction.done,
                    "absent": sorted(item.correction.absent),
                    # SVG measures from the corner of the image, so pixel centers are at 0.5.
                    "places": {
                        landmark: [coordinate + 0.5 for coordinate in place.xy] for landmark, place in places
                    },
                    "moved": [landmark for landmark, place in places if place.is_moved],
                }
        return by_row


# --- images ------------------------------------------------------------------------------------------


def _add_image_routes(app: FastAPI, shown: ShownImages, renderer: ImageRenderer) -> None:
    num_images, num_landmarks = shown.score.shape

    def require_in_range(row: int, landmark: int = 0) -> None:
        if not (0 <= row < num_images and 0 <= landmark < num_landmarks):
            raise HTTPException(404)

    @app.get("/api/images")
    async def list_images(
        start: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=_MAX_LIMIT)] = _PAGE_LENGTH,
    ) -> AsciiJSONResponse:
        rows = range(start, min(start + limit, num_images))
        images = [_image_to_json(shown, renderer, row) for row in rows]
        return AsciiJSONResponse({"total": num_images, "images": images})

    @app.get("/api/gallery/{landmark}")
    async def list_crops(
        landmark: int,
        order: Order = "mixed",
        start: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=_MAX_LIMIT)] = _PAGE_LENGTH,
    ) -> AsciiJSONResponse:
        require_in_range(0, landmark)
        rows = _order_rows(shown.score[:, landmark], order)[start : start + limit].tolist()
        crops = [{"row": row, "score": round(float(shown.score[row, landmark]), 3)} for row in rows]
        return AsciiJSONResponse({"total": num_images, "crops": crops})

    # Use only a few threads: each holds a decoded original, and its memory is not given back afterwards.
    render_threads = ThreadPoolExecutor(_RENDER_THREADS, thread_name_prefix="render")

    async def render_jpeg(render: Callable[..., bytes], *indices: int) -> Response:
        content = await asyncio.get_running_loop().run_in_executor(render_threads, render, *indices)
        return Response(content, media_type="image/jpeg", headers=_CACHE_ONE_HOUR)

    @app.get("/images/{row}/large")
    async def get_large(row: int) -> Response:
        require_in_range(row)
        return await render_jpeg(renderer.large, row)

    @app.get("/images/{row}/thumbnail")
    async def get_thumbnail(row: int) -> Response:
        require_in_range(row)
        return await render_jpeg(renderer.thumbnail, row)

    @app.get("/images/{row}/crop/{landmark}")
    async def get_crop(row: int, landmark: int) -> Response:
        require_in_range(row, landmark)
        return await render_jpeg(renderer.crop, row, landmark)


def _image_to_json(shown: ShownImages, renderer: ImageRenderer, row: int) -> dict[str, Any]:
    left, top, right, bottom = renderer.view(row)
    # File names that are not valid UTF-8 contain lone surrogates, which browsers cannot display.
    name = shown.refs[row].name.encode("utf-8", errors="replace").decode()
    return {
        "row": row,
        "name": name,
        "view": [left, top, right - left, bottom - top],
        # SVG measures from the corner of the image, so pixel centers are at 0.5.
        "xy": np.round(shown.xy[row].astype(float) + 0.5, 1).tolist(),
        "score": np.round(shown.score[row].astype(float), 3).tolist(),
    }


def _order_rows(score: np.ndarray[Any, Any], order: Order) -> np.ndarray[Any, Any]:
    """Return all rows in the order in which a gallery shows them.

    `mixed` takes every n-th image, then every n-th image starting one image later, and so on. So the first
    crops come from all parts of the data.
    """
    if order == "highest":
        return np.argsort(-score, kind="stable")
    if order == "lowest":
        return np.argsort(score, kind="stable")
    step = max(1, len(score) // _PAGE_LENGTH)
    rows = np.arange(len(score))
    return rows[np.lexsort((rows, rows % step))]
