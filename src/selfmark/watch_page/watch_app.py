"""HTTP application of the watch page: the page, the state of the run, and its previews."""

from __future__ import annotations

import threading
from pathlib import Path

from fastapi import FastAPI, HTTPException
from fastapi.responses import JSONResponse, Response
from starlette.types import ASGIApp

from selfmark.local_page.page_files import NO_STORE, add_page
from selfmark.run.guarded_files import read_bytes
from selfmark.watch_page.run_state import RunState

_PAGE = Path(__file__).parent / "page"
_CACHE_FOREVER = {"cache-control": "private, max-age=31536000, immutable"}  # the address has the version


class WatchApp:
    """The application, and whether a browser has seen the end of the run.

    Attributes:
        app: The application.
        has_visitors: Whether a browser has asked for the state.
        has_shown_end: Whether a browser has got the state of the finished run.
    """

    def __init__(self, folder: Path) -> None:
        """Serve the state of a run folder."""
        self.has_visitors = False
        self.has_shown_end = threading.Event()
        self._state = RunState(folder)
        self.app: ASGIApp = self._build(FastAPI(docs_url=None, redoc_url=None, openapi_url=None))

    def _build(self, app: FastAPI) -> ASGIApp:
        add_page(app, _PAGE)

        @app.get("/api/state")
        async def get_state() -> JSONResponse:
            self.has_visitors = True
            self._state.update()
            state = self._state.to_json()
            if state["status"] == "done":
                self.has_shown_end.set()
            return JSONResponse(state, headers=NO_STORE)

        @app.get("/preview/{step}")
        async def get_preview(step: str) -> Response:
            path = self._state.preview_path(step)
            if path is None or not path.exists():
                raise HTTPException(404)
            return Response(read_bytes(path), media_type="image/jpeg", headers=_CACHE_FOREVER)

        return app
