"""Test the command `selfmark name`: start, stop, and errors that prevent the start."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from selfmark.local_page.page_server import open_socket
from selfmark.model.card import read_card
from selfmark.naming.landmark_prediction import predict_landmarks
from selfmark.naming.shown_images import compute_landmarks_fingerprint, select_shown_images
from tests.conftest import read_error_line, selfmark
from tests.naming.toy_server import WRITE_HEADERS


@pytest.fixture(scope="module")
def ready_run(quick_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run whose landmarks have already been predicted."""
    folder = tmp_path_factory.mktemp("ready") / "run"
    shutil.copytree(quick_run, folder)
    refs = select_shown_images(folder, [], 400)
    predict_landmarks(
        folder,
        refs,
        compute_landmarks_fingerprint(folder / "model", read_card(folder / "model"), refs),
        "cpu",
    )
    return folder


def start_server(*arguments: object) -> tuple[subprocess.Popen[str], str, str]:
    """Start the command; return the process, the address it prints, and the next line."""
    process = subprocess.Popen(
        [sys.executable, "-m", "selfmark", "name", *map(str, arguments), "--no-browser"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"http://127\.0\.0\.1:\d+/\?token=\S{43}", line):
            return process, found.group(), process.stdout.readline()
    raise AssertionError(f"exit code {process.wait()} before an address was printed")


def test_the_server_starts_saves_an_edit_and_stops(ready_run: Path) -> None:
    process, address, summary = start_server(ready_run)
    try:
        with httpx.Client(follow_redirects=True) as client:
            page = client.get(address)
            assert page.status_code == 200
            origin = address.split("/?")[0]
            edit = {"edits": [{"kind": "rename", "landmark": 0, "name": "nose"}]}
            assert client.post(f"{origin}/api/edits", json=edit, headers=WRITE_HEADERS).status_code == 200
        maps = Path(f"/proc/{process.pid}/maps")
        if maps.exists():
            assert "libtorch" not in maps.read_text(), "the server must not load torch"
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=20)
        assert process.returncode == 0
        assert summary.startswith("24 images")
        assert f"names saved in {ready_run / 'model' / 'model.json'}" in output
        assert "Traceback" not in output
    finally:
        process.kill()
    assert read_card(ready_run / "model").names[0] == "nose"


def test_landmarks_are_predicted_in_a_child_process(quick_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "fresh"
    shutil.copytree(quick_run, folder)
    process, address, summary = start_server(folder, "--max-images", 8, "--device", "cpu")
    try:
        assert httpx.get(address).status_code == 303
        assert (folder / "naming" / "landmarks.safetensors").exists()
        maps = Path(f"/proc/{process.pid}/maps")
        if maps.exists():
            assert "libtorch" not in maps.read_text()
        process.terminate()
        output, _ = process.communicate(timeout=20)
        assert process.returncode == 0
        assert summary.startswith("8 images")
        assert "names saved in" in output
    finally:
        process.kill()


def test_a_port_in_use_is_reported(ready_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_socket(0) as taken:
        port = taken.getsockname()[1]
        assert selfmark("name", ready_run, "--port", port, "--no-browser") == 2
    assert (
        f"cannot listen on port {port} (Address already in use): choose another with --port"
        in read_error_line(capsys)
    )


def test_tcp_nodelay_is_set() -> None:
    """Without TCP_NODELAY, every response waits 40 ms for the browser to acknowledge its first packet."""

    async def get_option() -> int:
        option: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = writer.get_extra_info("socket")
            option.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with open_socket(0) as listener:
            async with await asyncio.start_server(handle, sock=listener):
                _, writer = await asyncio.open_connection(*listener.getsockname())
                value = await option
                writer.close()
        return value

    with ThreadPoolExecutor(1) as thread:  # The browser tests may run an event loop in the main thread.
        assert thread.submit(lambda: asyncio.run(get_option())).result()


def test_requested_port_is_used(ready_run: Path) -> None:
    with open_socket(0) as free_socket:
        port = free_socket.getsockname()[1]
    process, address, _ = start_server(ready_run, "--port", port)
    try:
        assert f":{port}/" in address
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with socket.socket() as connection:
                if connection.connect_ex(("127.0.0.1", port)) == 0:
                    break
        else:
            pytest.fail("nothing listens on the port")
    finally:
        process.kill()
        process.communicate()


def test_errors_that_prevent_the_start_are_reported_in_one_line(
    ready_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert selfmark("name", tmp_path / "nothing", "--no-browser") == 2
    assert "nothing does not exist" in read_error_line(capsys)
    assert selfmark("name", "demo", "--no-browser") == 2
    assert "save it to a folder of your own" in read_error_line(capsys)
    assert selfmark("name", ready_run, tmp_path / "nowhere", "--no-browser") == 2
    assert "there is no file or folder" in read_error_line(capsys)
    assert selfmark("name", ready_run / "model", "--no-browser") == 2
    assert "does not say which images" in read_error_line(capsys)
    monkeypatch.setattr("selfmark.naming.server.os", SimpleNamespace(access=lambda *_: False, W_OK=os.W_OK))
    assert selfmark("name", ready_run, "--no-browser") == 2
    assert "cannot write to" in read_error_line(capsys)


def test_browser_is_opened_by_default(
    ready_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []

    def stop_at_once(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("uvicorn.Server.run", stop_at_once)
    assert selfmark("name", ready_run) == 0
    assert opened[0] in capsys.readouterr().out
    assert selfmark("name", ready_run, "--no-browser") == 0
    assert len(opened) == 1


def test_missing_extra_is_reported_with_the_install_command(
    ready_run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert selfmark("name", ready_run) == 2
    assert "pip install 'selfmark[web]'" in read_error_line(capsys)


def test_server_does_not_import_torch() -> None:
    code = "import sys, selfmark.naming.server; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
