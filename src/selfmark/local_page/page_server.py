"""Build the server of a local page, with a secret token and a socket that other machines cannot reach."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from selfmark.errors import InputError
from selfmark.local_page.access_guard import MAX_HEADER_BYTES, AccessGuard
from selfmark.local_page.timed_protocol import TimedProtocol

HOST = "127.0.0.1"


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


def build_page_server(
    build_app: Callable[[str], ASGIApp], command: str, listener: socket.socket
) -> tuple[str, uvicorn.Server]:
    """Build the server of a page.

    Args:
        build_app: returns the application for a token; only requests with this token reach it.
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
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        ws="none",
        timeout_graceful_shutdown=2,
    )
    return f"http://{HOST}:{port}/?token={token}", uvicorn.Server(config)
