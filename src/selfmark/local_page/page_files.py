"""Serve the files of a page: index.html, scripts and styles of one folder, without a build step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import FileResponse, JSONResponse

from selfmark.errors import InputError


class AsciiJSONResponse(JSONResponse):
    """A response with JSON in ASCII, which can represent any string, even if it is not valid Unicode."""

    def render(self, content: Any) -> bytes:
        """Return the JSON text."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


NO_STORE = {"cache-control": "no-store"}
_MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def add_error_reports(app: FastAPI) -> None:
    """Answer with status 409 and a message, instead of 500, if a file of the run cannot be used."""

    @app.exception_handler(InputError)
    def report_input_error(request: Request, error: InputError) -> AsciiJSONResponse:
        return AsciiJSONResponse({"error": str(error)}, 409, NO_STORE)

    @app.exception_handler(OSError)
    def report_disk_error(request: Request, error: OSError) -> AsciiJSONResponse:
        problem = f"{error.strerror}: {error.filename}" if error.filename else str(error)
        return AsciiJSONResponse({"error": f"a file cannot be read or written ({problem})"}, 409, NO_STORE)


def add_page(app: FastAPI, folder: Path) -> None:
    """Serve index.html of a folder at / and its other files at /page/NAME.

    Args:
        app: application to extend.
        folder: folder with the files of the page; only files with a suffix in `_MEDIA_TYPES` are served.
    """
    files = {path.name: _MEDIA_TYPES[path.suffix] for path in folder.iterdir() if path.suffix in _MEDIA_TYPES}

    @app.get("/")
    async def index() -> FileResponse:
        return FileResponse(folder / "index.html", headers=NO_STORE)

    @app.get("/page/{name}")
    async def page_file(name: str) -> FileResponse:
        if name not in files:
            raise HTTPException(404)
        return FileResponse(folder / name, media_type=files[name], headers={"cache-control": "no-cache"})
