"""Build the HTTP application of the watch page: it serves the page, the state of the run and previews."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException
from fastapi.responses import Response
from starlette.types import ASGIApp

from selfmark.local_page.page_files import NO_STORE, AsciiJSONResponse, add_error_reports, add_page
from selfmark.run.files import view_folders
from selfmark.run.guarded_files import read_bytes
from selfmark.watch_page.run_state import RunState

_MAX_PREVIEW_BYTES = 1 << 25
_PAGE = Path(__file__).parent / "page"
# Previews can be cached forever, because their address contains their version.
_CACHE_FOREVER = {"cache-control": "private, max-age=31536000, immutable"}


class WatchApp:
    """The application, which also records whether a browser has seen the end of the run.

    Attributes:
        app: The application.
        has_visitors: Whether a browser has asked for the state.
        has_shown_end: Event that is set when a browser has received the state of the finished run.
    """

    def __init__(self, folder: Path) -> None:
        """Serve the state of a run folder, or of a folder with a run for each view."""
        self.has_visitors = False
        self.has_shown_end = threading.Event()
        self._title = folder.resolve().name
        self._states = {part.name: RunState(part) for part in view_folders(folder)} or {"": RunState(folder)}
        self.app: ASGIApp = self._build(FastAPI(docs_url=None, redoc_url=None, openapi_url=None))

    def _build(self, app: FastAPI) -> ASGIApp:
        add_page(app, _PAGE)
        add_error_reports(app)

        @app.get("/api/state")
        async def get_state(view: str = "") -> AsciiJSONResponse:
            self.has_visitors = True
            states = {name: self._read_state(name) for name in self._states}
            shown = view if view in states else self._find_newest_view()
            statuses = [{"name": name, "status": state["status"]} for name, state in states.items() if name]
            is_done = all(state["status"] == "done" for state in states.values())
            if is_done:
                self.has_shown_end.set()
            state = states[shown] | {
                "title": self._title,
                "views": statuses,
                "view": shown,
                "is_done": is_done,
            }
            return AsciiJSONResponse(state, headers=NO_STORE)

        @app.get("/preview/{step}")
        async def get_preview(step: str, view: str = "") -> Response:
            state = self._states.get(view)
            path = None if state is None else state.preview_path(step)
            if path is None or not path.exists():
                raise HTTPException(404)
            return Response(
                read_bytes(path, _MAX_PREVIEW_BYTES), media_type="image/jpeg", headers=_CACHE_FOREVER
            )

        return app

    def _read_state(self, name: str) -> dict[str, Any]:
        """Read the new events of a run and return its state."""
        state = self._states[name]
        state.update()
        values = state.to_json()
        if not state.is_started:
            values |= {"status": "waiting", "stage": "not started yet"}
        return values

    def _find_newest_view(self) -> str:
        """Return the view that was started last, or the first view if none was started.

        Views are trained one after the other.
        """
        started = [name for name, state in self._states.items() if state.is_started]
        return started[-1] if started else next(iter(self._states))
