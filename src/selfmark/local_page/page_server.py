"""Build the server of a local page, with a secret token and a socket that other machines cannot reach."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from selfmark.errors import InputError
from selfmark.local_page.access_guard import MAX_HEADER_BYTES, AccessGuard
from selfmark.local_page.timed_protocol import MAX_ACCEPTED, TimedProtocol

HOST = "127.0.0.1"
_MAX_WAITING = 2_048  # connections that wait to be accepted


def open_socket(port: int) -> socket.socket:
    """Return a socket that listens on this machine only.

    Args:
        port: port to listen on; 0 for any free port.
    """
    # asyncio sets TCP_NODELAY only if the socket is created with IPPROTO_TCP. Without TCP_NODELAY, every
    # response takes 40 ms longer.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise InputError(
            f"cannot listen on port {port} ({error.strerror}): choose another with --port"
        ) from error
    return listener


class PageServer(uvicorn.Server):
    """A server that survives bursts of connections without filling the terminal with tracebacks."""

    _has_warned = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections."""
        asyncio.get_running_loop().set_exception_handler(self._report_error)
        await super().startup(sockets)
        for listener in sockets or ():
            # asyncio has set the length of the queue to the number of connections that it accepts at once.
            # More connections must be able to wait.
            listener.listen(_MAX_WAITING)

    def _report_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Report an error of the event loop.

        If no connection can be accepted, the report is one line and appears only once.
        """
        if "socket.accept() out of system resource" not in context["message"]:
            loop.default_exception_handler(context)
        elif not self._has_warned:
            self._has_warned = True
            reason = getattr(context.get("exception"), "strerror", None) or "out of resources"
            logging.getLogger("uvicorn.error").warning(
                "cannot accept a connection (%s); trying again every second", reason
            )


def build_page_server(
    build_app: Callable[[str], ASGIApp], command: str, listener: socket.socket
) -> tuple[str, uvicorn.Server]:
    """Build the server of a page.

    Args:
        build_app: builds the application for a token. Only requests with this token reach the application.
        command: command that serves the page, for messages, e.g. `selfmark name`.
        listener: socket from `open_socket`.

    Returns:
        The address of the page with its token, and the server to run on the socket.
    """
    token, port = secrets.token_urlsafe(32), listener.getsockname()[1]
    config = uvicorn.Config(
        AccessGuard(build_app(token), token, port, command),
        log_level="warning",
        access_log=False,  # the log would contain the token
        server_header=False,
        lifespan="off",
        loop="asyncio",
        http=TimedProtocol,
        backlog=MAX_ACCEPTED,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        ws="none",
        timeout_graceful_shutdown=2,
    )
    return f"http://{HOST}:{port}/?token={token}", PageServer(config)
