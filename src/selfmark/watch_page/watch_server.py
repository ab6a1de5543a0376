"""Serve the watch page on its own (`selfmark watch`) or during a training (`selfmark discover --watch`)."""

from __future__ import annotations

import socket
import threading
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import uvicorn

from selfmark.local_page.page_server import build_page_server, open_socket
from selfmark.run.files import require_run, view_folders
from selfmark.watch_page.watch_app import WatchApp

_END_SECONDS = 5.0  # time limit for an open page to fetch the final state, and again for the server to stop


def watch_run(folder: Path, port: int, browser: bool, print_line: Callable[[str], None]) -> None:
    """Serve the watch page of a run until the user stops it.

    Args:
        folder: run folder, or folder with a run for each view. The run may be training, stopped or finished.
        port: port to listen on; 0 for any free port.
        browser: whether to open the page in the browser.
        print_line: prints a line for the user.
    """
    if not view_folders(folder):
        require_run(folder)
    with open_socket(port) as listener:
        address, server, _ = build_watch_server(folder, "selfmark watch", listener)
        with suppress(KeyboardInterrupt):  # raised by the server after Ctrl-C
            print_line(f"watch page: {address}")
            print_line("The run continues without the page. Stop with Ctrl-C.")
            if browser:
                webbrowser.open(address)
            server.run(sockets=[listener])


def build_watch_server(
    folder: Path, command: str, listener: socket.socket
) -> tuple[str, uvicorn.Server, WatchApp]:
    """Build the server of a watch page.

    Args:
        folder: run folder.
        command: command that serves the page, for messages.
        listener: socket from `open_socket`.

    Returns:
        The address of the page with its token, the server to run on the socket, and the application.
    """
    watched = WatchApp(folder)
    address, server = build_page_server(lambda token: watched.app, command, listener)
    return address, server, watched


@contextmanager
def serve_in_background(folder: Path, browser: bool, print_line: Callable[[str], None]) -> Iterator[None]:
    """Serve the watch page in a thread while the context lasts, e.g. while a run trains.

    At the end, an open page gets a few seconds to fetch the final state.

    Args:
        folder: run folder.
        browser: whether to open the page in the browser.
        print_line: prints a line for the user.
    """
    with open_socket(0) as listener:
        address, server, watched = build_watch_server(folder, "selfmark discover --watch", listener)
        thread = threading.Thread(
            target=server.run, kwargs={"sockets": [listener]}, name="selfmark-watch", daemon=True
        )
        thread.start()
        print_line(f"watch page: {address}")
        if browser:
            webbrowser.open(address)
        try:
            yield
            if watched.has_visitors:
                watched.has_shown_end.wait(_END_SECONDS)
        finally:
            server.should_exit = True
            thread.join(_END_SECONDS)
