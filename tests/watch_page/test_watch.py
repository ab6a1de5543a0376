"""Test the watch page: its state from events, its server while a run trains, and the page in Chromium."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from selfmark.local_page.page_server import open_socket
from selfmark.run.locks import exclusive, is_locked
from selfmark.watch_page.run_state import RunState
from selfmark.watch_page.watch_server import build_watch_server
from tests.browser import visit
from tests.conftest import QUICK_OPTIONS, selfmark

INJECTION = '<img src=x onerror="window.attacked=1">'
START = {"event": "start", "images": 60, "K": 10, "preset": "tiny", "device": "cpu", "output": "runs/a"}
PLAN = {
    "event": "plan",
    "rounds": 0,
    "stage1": 0,
    "stage2": 0,
    "student_rounds": 2,
    "stages": {"student": 20},
}
VERDICT = {"event": "verdict", "verdict": "good", "text": "The landmarks mark the same parts."}


def _make_train_event(number: int, iteration: int, seconds: float, loss: float) -> dict[str, Any]:
    event = {"event": "train", "stage": "student", "round": number, "iteration": iteration, "start": 0}
    return event | {"stop": 10, "seconds": seconds, "loss": {"total": loss}}


def _append_events(folder: Path, *events: dict[str, Any]) -> None:
    with (folder / "log.jsonl").open("a") as handle:
        handle.writelines(json.dumps({"time": time.time(), **event}) + "\n" for event in events)


def _write_preview(folder: Path, step: str, color: int) -> dict[str, Any]:
    """Write the picture of a step and return its event."""
    (folder / "preview").mkdir(exist_ok=True)
    path = folder / "preview" / f"{step}.jpg"
    Image.fromarray(np.full((30, 40, 3), color, np.uint8)).save(path)
    return {"event": "preview", "path": str(path), "step": step}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a run that has learned one and a half rounds."""
    run = tmp_path / "cats"
    run.mkdir()
    (run / "run.json").write_text('{"format": 1}')
    _append_events(
        run, START, {"event": "survey", "sentences": ["60 images", f"1 copy of {INJECTION}.png"]}, PLAN
    )
    _append_events(
        run,
        _write_preview(run, "zero-shot", 40),
        _make_train_event(1, 5, 5.0, 0.9),
        _make_train_event(1, 10, 10.0, 0.5),
    )
    _append_events(
        run,
        _write_preview(run, "student-1", 90),
        _make_train_event(2, 4, 8.0, 0.4),
        _make_train_event(2, 6, 12.0, 0.3),
    )
    return run


@contextmanager
def _serve(folder: Path) -> Iterator[str]:
    with open_socket(0) as listener:
        address, server, _ = build_watch_server(folder, "selfmark watch", listener)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield address
        finally:
            server.should_exit = True
            thread.join(20)


def test_the_state_follows_the_events(folder: Path) -> None:
    state = RunState(folder)
    state.update()
    shown = state.to_json()
    assert shown["status"] == "running"
    assert shown["stage"] == "learning landmarks, round 2 of 2"
    assert shown["progress"] == (6, 10)
    assert shown["seconds_left"] == 8  # Four iterations are left, two seconds each.
    assert [(item["step"], item["caption"]) for item in shown["previews"]] == [
        ("zero-shot", "first landmarks"),
        ("student-1", "after round 1"),
    ]
    assert [curve["points"] for curve in shown["losses"]] == [[(5, 0.9), (10, 0.5)], [(4, 0.4), (6, 0.3)]]
    undone = {"event": "agreement", "stage": "student", "round": 1, "is_kept": False}
    _append_events(
        folder, undone, _make_train_event(2, 5, 1.0, 0.2), VERDICT, {"event": "done", "output": "runs/a"}
    )
    state.update()
    finished = state.to_json()
    assert (finished["status"], finished["seconds_left"]) == ("done", 0)
    assert "undone" in finished["previews"][1]["note"]
    assert finished["losses"][1]["points"] == [(4, 0.4), (5, 0.2)]  # A resumed run repeats iterations.
    assert finished["verdict"].startswith("good. ")


def test_the_state_forgets_a_run_that_was_deleted(folder: Path) -> None:
    state = RunState(folder)
    state.update()
    (folder / "log.jsonl").rename(folder / "old.jsonl")
    state.update()
    assert not state.is_started
    assert state.to_json() | {"status": ""} == RunState(folder).to_json() | {"status": ""}


def test_a_silent_run_is_running_only_while_a_process_holds_its_lock(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "log.jsonl").write_text(json.dumps({"time": time.time() - 60, **START}) + "\n")
    (folder / ".lock").touch()
    state = RunState(folder)
    state.update()
    with exclusive(folder):
        assert state.to_json()["status"] == "running"
    # The lock is probed by reading, which also works in a folder that cannot be written.
    monkeypatch.setattr("selfmark.run.locks.open_for_append", lambda path: pytest.fail("opened for writing"))
    assert state.to_json()["status"] == "stopped"
    assert str(folder) in state.to_json()["resume"]


def test_the_lock_of_a_run_in_a_read_only_folder_can_be_probed() -> None:
    code = (
        "import os, sys; from pathlib import Path; from selfmark.run.locks import is_locked\n"
        "os.getuid() or os.setuid(65534)\n"  # The user root may write everywhere.
        "print(is_locked(Path(sys.argv[1])))"
    )

    # Other users cannot enter the temporary folders of pytest.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / ".lock").touch()
        (folder / ".lock").chmod(0o444)
        folder.chmod(0o555)

        def ask_if_locked() -> str:
            command = [sys.executable, "-c", code, str(folder)]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

        assert ask_if_locked() == "False"
        with exclusive(folder):
            assert ask_if_locked() == "True"
        folder.chmod(0o755)


def test_one_page_shows_all_views(browser: Any, folder: Path) -> None:
    run = folder.parent
    views = [{"name": name, "box": [0, 0, 9, 9]} for name in (folder.name, "mirror", "back")]
    (run / "views.json").write_text(json.dumps({"format": 1, "views": views}))
    second = run / "mirror"
    second.mkdir()
    _append_events(folder, VERDICT, {"event": "done"})
    _append_events(second, START, _write_preview(second, "zero-shot", 60))
    with _serve(run) as address, visit(browser, address) as visited:
        page = visited.page
        page.wait_for_function("() => document.getElementById('picture').naturalWidth > 0")
        texts = ["cats: done", "mirror: running", "back: waiting"]
        assert page.locator("#views button").all_inner_texts() == texts
        assert page.inner_text("#views [aria-pressed=true]") == "mirror: running"  # This view is training.
        assert "view=mirror" in page.get_attribute("#picture", "src")
        page.click("#views button:first-child")
        page.wait_for_selector("#verdict:visible")
        page.wait_for_function("() => document.getElementById('picture').src.includes('view=cats')")
        assert page.inner_text("#title").endswith("view cats")
        page.click("#views button:last-child")
        page.wait_for_selector("#picture-link", state="hidden")
        assert page.inner_text("#stage") == "not started yet"
        assert visited.find_problems() == []
    state = RunState(second)
    assert f"-o {run} --resume" in state.to_json()["resume"], "all views are resumed together"


def test_probing_the_lock_does_not_keep_a_new_process_from_acquiring_it(folder: Path) -> None:
    (folder / ".lock").touch()
    with (folder / ".lock").open("rb") as probe:
        fcntl.flock(probe, fcntl.LOCK_SH)
        release = threading.Timer(0.1, fcntl.flock, (probe, fcntl.LOCK_UN))
        release.start()
        with exclusive(folder):  # This call waits for a moment.
            assert is_locked(folder)
    release.join()
    assert not is_locked(folder)


def test_only_previews_of_the_run_are_served_and_only_with_the_token(folder: Path) -> None:
    (folder / "preview" / "secret.jpg").write_bytes(b"no event mentions this file")
    with _serve(folder) as address:
        origin = address.split("/?")[0]
        assert httpx.get(f"{origin}/api/state").status_code == 403
        assert "selfmark watch" in httpx.get(f"{origin}/").text
        with httpx.Client(base_url=origin, follow_redirects=True) as client:
            assert client.get(address).status_code == 200
            assert client.get("/api/state").json()["title"] == "cats"
            assert client.get("/preview/zero-shot").headers["content-type"] == "image/jpeg"
            for step in ("secret", "student-9", "..%2Frun", "%2e%2e%2flog", "zero-shot.jpg"):
                assert client.get(f"/preview/{step}").status_code == 404, step


def test_crafted_logs_and_files_cause_no_server_error(folder: Path) -> None:
    outside = folder.parent / "outside.jpg"
    outside.write_bytes(b"secret")
    losses = [_make_train_event(1, number, 1.0, 0.5) | {"loss": {"total": None}} for number in range(500)]
    path_traversal = {
        "event": "agreement",
        "stage": "student",
        "is_kept": False,
        "round": "/../../../outside",
    }
    _append_events(folder, *losses, path_traversal, _write_preview(folder, "student-2", 90))
    (folder / "preview" / "student-2.jpg").unlink()
    (folder / "preview" / "student-2.jpg").symlink_to(outside)
    with _serve(folder) as address, httpx.Client(follow_redirects=True) as client:
        origin = address.split("/?")[0]
        client.get(address)
        shown = client.get(f"{origin}/api/state").json()
        # The page cannot draw a curve without points or with a loss that is not a number.
        assert all(curve["points"] for curve in shown["losses"])
        assert all(loss is not None for curve in shown["losses"] for _, loss in curve["points"])
        assert "outside" not in json.dumps(shown)
        assert client.get(f"{origin}/preview/student-2").status_code == 409
        for replace in (Path.mkdir, lambda path: path.symlink_to("/dev/zero"), os.mkfifo):
            (folder / "log.jsonl").unlink()
            replace(folder / "log.jsonl")
            assert client.get(f"{origin}/api/state").status_code == 409
            if (folder / "log.jsonl").is_dir():
                shutil.rmtree(folder / "log.jsonl")
                (folder / "log.jsonl").touch()


def test_the_page_follows_a_run_to_its_end(browser: Any, folder: Path, tmp_path: Path) -> None:
    with _serve(folder) as address, visit(browser, address) as visited:
        page = visited.page
        page.wait_for_function("() => document.getElementById('picture').naturalWidth > 0")
        assert page.inner_text("#stage") == "learning landmarks, round 2 of 2"
        assert page.inner_text("#left") == "8 s left"
        assert page.locator("#steps button").all_inner_texts() == ["first landmarks", "after round 1"]
        assert page.locator("[aria-pressed=true]").inner_text() == "after round 1"  # This is the newest step.
        assert page.locator("polyline").count() == 2
        assert INJECTION in page.inner_text("#messages")
        page.click("#steps button:first-child")
        page.wait_for_function("() => document.getElementById('picture').src.includes('zero-shot')")
        _append_events(
            folder,
            _make_train_event(2, 10, 20.0, 0.1),
            _write_preview(folder, "detector", 200),
            VERDICT,
            {"event": "done"},
        )
        page.wait_for_selector("#status.done")
        assert page.inner_text("#stage") == "finished"
        assert page.inner_text("#verdict").startswith("Verdict: good.")
        assert page.locator("#steps button").count() == 3
        assert "zero-shot" in page.get_attribute("#picture", "src")  # The page keeps the choice of the user.
        page.click("#steps button:last-child")
        page.wait_for_function("() => document.getElementById('picture').src.includes('detector')")
        page.wait_for_function("() => document.getElementById('picture').complete")
        assert not visited.was_attacked()
        assert visited.find_problems() == []
        page.set_viewport_size({"width": 380, "height": 800})
        assert visited.find_problems() == []


def test_the_server_does_not_import_torch() -> None:
    code = "import sys, selfmark.watch_page.watch_server; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


def test_discover_serves_the_page_and_writes_previews_and_tensorboard(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    states: list[dict[str, Any]] = []

    def follow(address: str) -> None:
        with httpx.Client(base_url=address.split("/?")[0], follow_redirects=True) as client:
            client.get(address)
            while not states or states[-1]["status"] != "done":
                states.append(client.get("/api/state").json())
                time.sleep(0.3)

    threads: list[threading.Thread] = []

    def open_browser(address: str) -> None:
        threads.append(threading.Thread(target=follow, args=[address]))
        threads[0].start()

    monkeypatch.setattr("webbrowser.open", open_browser)
    run = tmp_path / "run"
    options = ["--watch", "--logger=tensorboard"]
    assert selfmark("discover", photos, "-o", run, *QUICK_OPTIONS, *options) == 0
    threads[0].join(20)
    assert states[-1]["status"] == "done"
    assert {state["status"] for state in states} <= {"running", "done"}
    printed = capsys.readouterr().out
    assert "watch page: http://127.0.0.1:" in printed
    assert f"TensorBoard: tensorboard --logdir {run}" in printed
    steps = [item["step"] for item in states[-1]["previews"]]
    assert steps == ["round-01", "round-02", "stage-1", "detector"]
    assert sorted(steps) == sorted(path.stem for path in (run / "preview").iterdir())
    sizes = {Image.open(path).size for path in (run / "preview").iterdir()}
    assert len(sizes) == 1  # All pictures show the same images.
    events = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    trained = [event for event in events if event["event"] == "train" and event["stage"] == "round"]
    board = accumulator.EventAccumulator(str(run / "tensorboard"))
    board.Reload()
    curve = board.Scalars("round/total")
    assert [point.value for point in curve] == pytest.approx([event["loss"]["total"] for event in trained])
    steps_of_curve = [point.step for point in curve]
    assert steps_of_curve == sorted(set(steps_of_curve)), (
        "the steps of a round follow the last step of the round before"
    )
    assert {f"landmarks/{step}" for step in steps} <= set(board.Tags()["images"])
