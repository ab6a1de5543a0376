"""`selfmark name` from the outside: its address, its end, and everything that keeps it from starting."""

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

from selfmark.model.card import read_card
from selfmark.naming.landmark_finder import find_landmarks
from selfmark.naming.server import open_socket
from selfmark.naming.shown_images import choose_images, images_fingerprint
from tests.conftest import selfmark
from tests.naming.toy_server import WRITE


@pytest.fixture(scope="module")
def ready_run(quick_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose landmarks have been found already."""
    folder = tmp_path_factory.mktemp("ready") / "run"
    shutil.copytree(quick_run, folder)
    refs = choose_images(folder, [], 400)
    find_landmarks(
        folder, refs, images_fingerprint(folder / "model", read_card(folder / "model"), refs), "cpu"
    )
    return folder


def start(*arguments: object) -> tuple[subprocess.Popen[str], str, str]:
    """The command in a process of its own, the address it prints, and the line after that."""
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
    raise AssertionError(f"it ended with code {process.wait()} before it printed an address")


def test_from_start_to_end(ready_run: Path) -> None:
    process, address, about = start(ready_run)
    try:
        with httpx.Client(follow_redirects=True) as client:
            page = client.get(address)
            assert page.status_code == 200
            origin = address.split("/?")[0]
            edit = {"edits": [{"kind": "rename", "landmark": 0, "name": "nose"}]}
            assert client.post(f"{origin}/api/edits", json=edit, headers=WRITE).status_code == 200
        maps = Path(f"/proc/{process.pid}/maps")
        if maps.exists():
            assert "libtorch" not in maps.read_text(), "torch must not be loaded where the page is served"
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=20)
        assert process.returncode == 0
        assert about.startswith("24 images")
        assert f"names are in {ready_run / 'model' / 'model.json'}" in output
        assert "Traceback" not in output
    finally:
        process.kill()
    assert read_card(ready_run / "model").names[0] == "nose"


def test_landmarks_are_found_by_a_process_that_ends(quick_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "fresh"
    shutil.copytree(quick_run, folder)
    process, address, about = start(folder, "--most", 8, "--device", "cpu")
    try:
        assert httpx.get(address).status_code == 303
        assert (folder / "naming" / "landmarks.safetensors").exists()
        maps = Path(f"/proc/{process.pid}/maps")
        if maps.exists():
            assert "libtorch" not in maps.read_text()
        process.terminate()
        output, _ = process.communicate(timeout=20)
        assert process.returncode == 0
        assert about.startswith("8 images")
        assert "names are in" in output
    finally:
        process.kill()


def sentence(capsys: pytest.CaptureFixture[str]) -> str:
    text = capsys.readouterr().err.strip()
    assert text.startswith("selfmark: ")
    assert "\n" not in text
    return text


def test_a_port_in_use(ready_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_socket(0) as taken:
        port = taken.getsockname()[1]
        assert selfmark("name", ready_run, "--port", port, "--no-browser") == 2
    assert f"cannot listen on port {port} (Address already in use): choose another with --port" in sentence(
        capsys
    )


def test_answers_are_sent_at_once() -> None:
    """Without TCP_NODELAY every answer waits 40 ms for the browser to acknowledge its first packet."""

    async def accepted() -> int:
        seen: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            line = writer.get_extra_info("socket")
            seen.set_result(line.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with open_socket(0) as listening:
            async with await asyncio.start_server(answer, sock=listening):
                _, writer = await asyncio.open_connection(*listening.getsockname())
                found = await seen
                writer.close()
        return found

    with ThreadPoolExecutor(1) as apart:  # the browser's loop may be running in this thread
        assert apart.submit(lambda: asyncio.run(accepted())).result()


def test_a_port_asked_for(ready_run: Path) -> None:
    with open_socket(0) as free:
        port = free.getsockname()[1]
    process, address, _ = start(ready_run, "--port", port)
    try:
        assert f":{port}/" in address
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with socket.socket() as line:
                if line.connect_ex(("127.0.0.1", port)) == 0:
                    break
    finally:
        process.kill()
        process.communicate()


def test_what_cannot_be_named(
    ready_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert selfmark("name", tmp_path / "nothing", "--no-browser") == 2
    assert "contains no model" in sentence(capsys)
    assert selfmark("name", "demo", "--no-browser") == 2
    assert "save it to a folder of your own" in sentence(capsys)
    assert selfmark("name", ready_run, tmp_path / "nowhere", "--no-browser") == 2
    assert "there is no file or folder" in sentence(capsys)
    assert selfmark("name", ready_run / "model", "--no-browser") == 2
    assert "does not say which images" in sentence(capsys)
    monkeypatch.setattr("selfmark.naming.server.os", SimpleNamespace(access=lambda *_: False, W_OK=os.W_OK))
    assert selfmark("name", ready_run, "--no-browser") == 2
    assert "cannot write to" in sentence(capsys)


def test_the_browser_is_opened_unless_told_otherwise(
    ready_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []

    def run_at_once(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("uvicorn.Server.run", run_at_once)
    assert selfmark("name", ready_run) == 0
    assert opened[0] in capsys.readouterr().out
    assert selfmark("name", ready_run, "--no-browser") == 0
    assert len(opened) == 1


def test_without_the_extra_one_sentence_says_what_to_install(
    ready_run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert selfmark("name", ready_run) == 2
    assert "pip install 'selfmark[web]'" in sentence(capsys)


def test_the_server_starts_without_torch() -> None:
    code = "import sys, selfmark.naming.server; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
