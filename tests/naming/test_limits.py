"""Test requests that are too long, too slow, too many or malformed, and files that disappear."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from selfmark.local_page import access_guard, timed_protocol
from tests.naming.toy_server import WRITE_HEADERS, ToyServer, make_toy_folder, serve


@pytest.fixture(scope="module")
def hasty_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToyServer]:
    """Start a server that waits half a second for headers and bodies, and allows 20 connections."""
    folder = tmp_path_factory.mktemp("hasty") / "toy"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timed_protocol, "HEADER_SECONDS", 0.5)
        patch.setattr(timed_protocol, "MAX_CONNECTIONS", 20)
        patch.setattr(access_guard, "BODY_SECONDS", 0.5)
        with serve(folder, make_toy_folder(folder)) as running:
            yield running


@contextmanager
def connect(running: ToyServer) -> Iterator[socket.socket]:
    port = int(running.origin.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        yield connection


def get_cookie(running: ToyServer) -> str:
    (entry,) = running.client.cookies.jar
    return f"{entry.name}={entry.value}"


def receive_all(connection: socket.socket) -> bytes:
    """Return everything up to the end of the connection; fail if the server keeps it open for 5 seconds."""
    received = b""
    try:
        while chunk := connection.recv(65_536):
            received += chunk
    except ConnectionError:
        pass
    return received


def test_unfinished_requests_are_closed(hasty_server: ToyServer) -> None:
    """Open 300 connections. Most are closed because only 20 are allowed, the rest because they are slow."""
    beginnings = [b"", b"GET", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx-a: "]
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(hasty_server)) for _ in range(300)]
        for number, connection in enumerate(connections):
            with suppress(ConnectionError):  # The server has closed the connection already.
                connection.sendall(beginnings[number % len(beginnings)])
        assert hasty_server.client.get("/api/run").status_code == 200  # The page still works.
        started = time.monotonic()
        assert all(receive_all(connection) == b"" for connection in connections)
        assert time.monotonic() - started < 4
    assert hasty_server.client.get("/api/run").status_code == 200


def test_the_server_survives_more_connections_than_it_may_open_files(tmp_path: Path) -> None:
    """700 half-sent requests wait for a server that may open 200 files."""
    code = """
import resource, signal
from starlette.responses import PlainTextResponse
from selfmark.local_page.page_server import build_page_server, open_socket
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
with open_socket(0) as listener:
    address, server = build_page_server(lambda token: PlainTextResponse("hello"), "selfmark name", listener)
    print(address, flush=True)
    server.run(sockets=[listener])
"""
    errors = tmp_path / "stderr"
    with ExitStack() as stack:
        command = [sys.executable, "-c", code]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stack.enter_context(errors.open("w")), text=True
        )
        stack.enter_context(process)
        stack.callback(process.kill)
        assert process.stdout is not None
        url = httpx.URL(process.stdout.readline().strip())
        client = stack.enter_context(httpx.Client(base_url=url.copy_with(query=None), timeout=20))
        assert client.get(url, follow_redirects=True).text == "hello"  # This request sets the cookie.
        # While the process is stopped, connections queue up. All of them are waiting when it continues.
        os.kill(process.pid, signal.SIGSTOP)
        for _ in range(700):
            connection = stack.enter_context(socket.create_connection((url.host, url.port or 0), timeout=5))
            connection.sendall(b"GET / HT")
        os.kill(process.pid, signal.SIGCONT)
        started = time.monotonic()
        # The first request uses the connection from before the burst, the second a new connection.
        for _ in range(2):
            assert client.get("/", headers={"connection": "close"}).text == "hello"
            descriptors = len(os.listdir(f"/proc/{process.pid}/fd"))
            # The server has 64 connections and about 10 other files open, and is still closing connections.
            assert descriptors < 64 + 40
        # The server did not wait until the half-sent requests timed out, which takes 10 seconds.
        assert time.monotonic() - started < 5
    assert errors.read_text().count("\n") <= 1


def test_the_owner_is_served_despite_many_connections_without_a_token(hasty_server: ToyServer) -> None:
    """Open many connections without a token. They stay open after the answer 403.

    On half of them, the server waits for the rest of a body.
    """
    host = hasty_server.origin.removeprefix("http://")
    with ExitStack() as stack:
        for number in range(timed_protocol.MAX_CONNECTIONS + 5):
            connection = stack.enter_context(connect(hasty_server))
            method = "POST" if number % 2 else "GET"
            length = "content-length: 100\r\n" if number % 2 else ""
            connection.sendall(f"{method} / HTTP/1.1\r\nhost: {host}\r\n{length}\r\n".encode())
            assert connection.recv(65_536).startswith(b"HTTP/1.1 403")
        with httpx.Client(base_url=hasty_server.origin, cookies=hasty_server.client.cookies) as owner:
            assert owner.get("/api/run").status_code == 200


def test_a_second_request_on_a_connection_must_arrive_in_time_too(hasty_server: ToyServer) -> None:
    host = hasty_server.origin.removeprefix("http://")
    with connect(hasty_server) as connection:
        head = f"GET /api/run HTTP/1.1\r\nhost: {host}\r\ncookie: {get_cookie(hasty_server)}\r\n"
        connection.sendall(f"{head}\r\n".encode())
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
        connection.sendall(head.encode())
        receive_all(connection)


@pytest.mark.parametrize("encoding", ["content-length: 100", "transfer-encoding: chunked"])
def test_a_body_must_arrive_in_time(encoding: str, hasty_server: ToyServer) -> None:
    host = hasty_server.origin.removeprefix("http://")
    headers = [f"host: {host}", f"cookie: {get_cookie(hasty_server)}", "x-selfmark: 1", "connection: close"]
    lines = ["POST /api/edits HTTP/1.1", *headers, encoding]
    with connect(hasty_server) as connection:
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        assert receive_all(connection).startswith(b"HTTP/1.1 408")


def test_the_token_is_checked_before_the_parameters(shared_server: ToyServer) -> None:
    many_arguments = "&".join(f"a{number}=1" for number in range(30))
    for query in (many_arguments, "a=" + "b" * 4_000, "%ff=%ff&" * 25):
        assert httpx.get(f"{shared_server.origin}/api/card?{query}").status_code == 403
        assert shared_server.client.get(f"/api/card?{query}").status_code == 400
    headers = {f"x-{number}": "a" * 1_000 for number in range(40)}
    # The server may close the connection while the client is still sending.
    with suppress(httpx.TransportError):
        assert shared_server.client.get("/api/card", headers=headers).status_code in (400, 431)


@pytest.mark.parametrize(
    "body",
    [
        rb'{"edits": [{"kind": "rename", "landmark": 0, "name": "\ud800"}]}',
        rb'{"edits": [{"kind": "\udfff"}]}',
        rb'{"edits": "\ud800"}',
        rb'{"edits": {"\ud800": 1}}',
    ],
)
def test_lone_surrogates_are_a_bad_request(body: bytes, shared_server: ToyServer) -> None:
    headers = WRITE_HEADERS | {"content-type": "application/json"}
    response = shared_server.client.post("/api/edits", content=body, headers=headers)
    assert response.status_code == 400
    assert "not valid Unicode" in response.text
    # A request without the field `edits` gets an error message that does not repeat the invalid text.
    response = shared_server.client.post("/api/edits", content=rb'{"\ud800": 1}', headers=headers)
    assert response.status_code == 422
    assert json.loads(response.content)["error"]


def test_a_moved_model_is_reported_and_works_again_when_moved_back(toy: ToyServer) -> None:
    model = toy.folder / "model"
    moved = Path(model).rename(toy.folder / "elsewhere")
    rename = {"kind": "rename", "landmark": 0, "name": "nose"}
    for response in (toy.client.get("/api/card"), toy.client.get("/api/run"), toy.edit(rename)):
        assert response.status_code == 409
        assert str(model) in response.json()["error"]
    moved.rename(model)
    assert toy.edit(rename).status_code == 200


def test_a_request_for_a_websocket_prints_nothing(
    hasty_server: ToyServer, caplog: pytest.LogCaptureFixture
) -> None:
    host = hasty_server.origin.removeprefix("http://")
    upgrade = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13"
    with connect(hasty_server) as connection:
        connection.sendall(f"GET /api/run HTTP/1.1\r\nhost: {host}\r\n{upgrade}\r\n\r\n".encode())
        assert connection.recv(65_536).startswith(b"HTTP/1.1 403")
    assert not caplog.records


def _require_conflict(toy: ToyServer) -> None:
    """Assert that the page writes nothing, because its landmarks are those of another detector."""
    card = (toy.folder / "model" / "model.json").read_bytes()
    for response in (
        toy.edit({"kind": "rename", "landmark": 0, "name": "nose"}),
        toy.correct({"kind": "done", "row": 0, "done": True}),
        toy.client.get("/api/card"),
    ):
        assert response.status_code == 409
        assert "another detector was put into" in response.json()["error"]
        assert "start it again" in response.json()["error"]
    assert (toy.folder / "model" / "model.json").read_bytes() == card


@pytest.mark.parametrize("kind", ["copied", "refined"])
def test_nothing_is_written_to_another_detector_in_the_same_folder(kind: str, tmp_path: Path) -> None:
    """Files of another detector are copied over those of this one, or refined weights replace its weights."""
    folder = tmp_path / "toy"
    shown = make_toy_folder(folder)
    weights = folder / "model" / "weights.safetensors"
    weights.write_bytes(b"weights")
    os.utime(weights, ns=(0, 0))
    with serve(folder, shown) as toy:
        assert toy.edit({"kind": "rename", "landmark": 0, "name": "ear"}).status_code == 200
        if kind == "copied":
            weights.write_bytes(b"others!")
        else:
            (tmp_path / "refined").write_bytes(b"refined")
            (tmp_path / "refined").rename(weights)
        _require_conflict(toy)
        assert not (folder / "corrections").exists()
    with serve(folder, shown) as toy:
        assert toy.correct({"kind": "done", "row": 0, "done": True}).status_code == 200


def test_nothing_is_written_to_another_detector(toy: ToyServer) -> None:
    """The page shows landmarks of the detector that it was opened with."""
    model = toy.folder / "model"
    shutil.copytree(model, toy.folder / "other")
    moved = model.rename(toy.folder / "elsewhere")
    (toy.folder / "other").rename(model)
    done = {"edits": [{"kind": "done", "row": 0, "done": True}]}
    _require_conflict(toy)
    assert not (toy.folder / "corrections").exists()
    shutil.rmtree(model)
    moved.rename(model)
    assert toy.client.post("/api/corrections", json=done, headers=WRITE_HEADERS).status_code == 200
