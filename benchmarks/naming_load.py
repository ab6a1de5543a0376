"""Measure memory and response times of the naming server for a run with 50,000 images.

    python benchmarks/naming_load.py --out docs/results/naming_load.json

The script creates a run folder with 50,000 file names (links to 200 JPEGs of 1280 x 960 pixels) and 30
landmarks per image. It serves the folder with `selfmark name` in a separate process. Then it sends the kinds
of requests that the page sends while a user works, including edits. One client sends its requests one after
the other; then eight clients send theirs concurrently. The memory is that of the server, at the start and at
its peak.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import provenance
from PIL import Image
from safetensors.numpy import save_file

from selfmark.config import Images, Network
from selfmark.image_ref import ImageRef
from selfmark.model.card import ModelCard, read_card, write_card
from selfmark.naming.shown_images import CACHE_FOLDER, LANDMARKS_FILE, compute_landmarks_fingerprint
from selfmark.run.files import FORMAT, write_json
from selfmark.run.image_list import refs_to_json

K = 30  # landmarks per image
SIZE = (1280, 960)  # width and height of the JPEGs, pixels
FILES = 200  # number of different JPEGs
SEED = 0
KINDS = ("names", "images", "gallery", "large", "tile", "crop", "edit")  # kinds of requests


def main() -> None:
    """Create the run, measure the server and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--requests", type=int, default=700, help="number of requests in each measurement")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="naming-load-"))
    try:
        make_run(folder / "run", folder / "photos", arguments.images)
        rows = measure(folder / "run", arguments.images, arguments.requests, arguments.clients)
    finally:
        shutil.rmtree(folder)
    for row in rows:
        print(row, flush=True)
    write_json(
        {
            "script": "benchmarks/naming_load.py",
            "hardware": provenance.describe_processor(),
            # Load averages over the last 1, 5 and 15 minutes, read at the end of the measurement.
            "load_average_meanwhile": [round(value, 1) for value in os.getloadavg()],
            "versions": {name: version(name) for name in ("fastapi", "uvicorn", "numpy", "pillow")}
            | {"python": platform.python_version()},
            "commit": provenance.read_commit(),
            "seed": SEED,
            "rows": rows,
        },
        arguments.out,
    )


def make_run(folder: Path, photos: Path, images: int) -> None:
    """Create a run folder as `discover` and an earlier `selfmark name` leave it, except for the weights.

    The weights file contains only zeros.
    """
    (folder / "model").mkdir(parents=True)
    photos.mkdir()
    rng = np.random.default_rng(SEED)
    for number in range(FILES):
        coarse = Image.fromarray(rng.integers(0, 255, (30, 40, 3), dtype=np.uint8))
        coarse.resize(SIZE, Image.Resampling.BICUBIC).save(photos / f"photo{number}.jpg", quality=90)
    refs = []
    for row in range(images):
        path = folder / "images" / f"{row // 1000:03d}" / f"a file with a rather long name {row:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        os.link(photos / f"photo{row % FILES}.jpg", path)
        refs.append(ImageRef(path))
    names = tuple(f"landmark_{index}" for index in range(K))
    card = ModelCard(names, tuple(range(K)), (), Images(), Network(), "centroid", True, {})
    write_card(card, folder / "model")
    (folder / "model" / "weights.safetensors").write_bytes(bytes(25_000_000))
    write_json(refs_to_json(refs), folder / "images.json")
    write_json({"format": FORMAT, "selfmark": "0", "inputs": []}, folder / "run.json")
    (folder / CACHE_FOLDER).mkdir()
    arrays = {
        "rows": np.arange(images),
        "sizes": np.tile(np.array(SIZE, np.int64), (images, 1)),
        "regions": np.tile([0.0, -160.0, 1280.0, 1280.0], (images, 1)),
        "xy": (rng.random((images, K, 2)) * SIZE).astype(np.float32),
        "score": rng.random((images, K)).astype(np.float32),
    }
    fingerprint = compute_landmarks_fingerprint(folder / "model", read_card(folder / "model"), refs)
    save_file(arrays, folder / CACHE_FOLDER / LANDMARKS_FILE, {"fingerprint": fingerprint})


def measure(run: Path, images: int, requests: int, clients: int) -> list[dict[str, Any]]:
    """Start the server and measure its memory and response times.

    Args:
        run: run folder.
        images: number of images in the run.
        requests: number of requests in each of the two measurements: sent by one client, then divided among
            the concurrent clients.
        clients: number of concurrent clients.
    """
    started = time.perf_counter()
    words = [sys.executable, "-m", "selfmark", "name", str(run), "--max-images", str(images), "--no-browser"]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        match = re.search(r"http\S+", server.stdout.readline())
        assert match is not None
        rows: list[dict[str, Any]] = []
        with closing(_open_client(match.group())) as client:
            _add_row(rows, "start", time.perf_counter() - started, "s until the page can be opened")
            _add_row(rows, "memory at the start", _read_memory(server.pid, "VmRSS"), "MiB resident")
            rng = np.random.default_rng(SEED)
            all_seconds: list[float] = []
            for kind in KINDS:
                cpu_seconds = _read_cpu_seconds(server.pid)
                seconds = [_send_request(client, kind, rng, images, 0) for _ in range(requests // len(KINDS))]
                cpu_seconds = (_read_cpu_seconds(server.pid) - cpu_seconds) / len(seconds)
                _add_percentiles(rows, f"one client, {kind}", seconds)
                _add_row(rows, f"one client, {kind}, CPU time of the server", 1000 * cpu_seconds, "ms")
                all_seconds += seconds
            _add_percentiles(rows, "one client, all", all_seconds)
        concurrent: list[float] = []
        arguments = (match.group(), images, requests // clients, concurrent)
        threads = [
            threading.Thread(target=_run_client, args=(number, *arguments)) for number in range(clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        _add_percentiles(rows, f"{clients} concurrent clients, all", concurrent)
        names = read_card(run / "model").names
        num_kept = sum(name.startswith(f"client {number} ") for number, name in enumerate(names[:clients]))
        _add_row(rows, "clients whose last edit is in model.json", num_kept, f"of {clients}")
        _add_row(rows, "peak memory", _read_memory(server.pid, "VmHWM"), "MiB resident")
        has_torch = "libtorch" in Path(f"/proc/{server.pid}/maps").read_text()
        _add_row(rows, "torch loaded", int(has_torch), "0 or 1")
        return rows
    finally:
        server.terminate()
        server.wait()


def _open_client(address: str) -> httpx.Client:
    client = httpx.Client(base_url=address.split("/?")[0], timeout=60, headers={"x-selfmark": "1"})
    client.get(address)
    return client


def _run_client(number: int, address: str, images: int, requests: int, seconds: list[float]) -> None:
    """Send requests of all kinds in turn and append their response times to `seconds`. Then send an edit."""
    rng = np.random.default_rng(number + 1)
    with closing(_open_client(address)) as client:
        for step in range(requests):
            seconds.append(_send_request(client, KINDS[step % len(KINDS)], rng, images, number))
        _send_request(client, "edit", rng, images, number)


def _send_request(
    client: httpx.Client, kind: str, rng: np.random.Generator, images: int, number: int
) -> float:
    """Send one request for a random image and landmark, and return the response time in seconds.

    Args:
        client: connected client.
        kind: one of `KINDS`.
        rng: random generator.
        images: number of images in the run.
        number: number of the client, which is also the landmark that it renames.
    """
    row, landmark = int(rng.integers(images)), int(rng.integers(K))
    order = ("mixed", "highest", "lowest")[int(rng.integers(3))]
    address = {
        "names": "/api/card",
        "images": f"/api/images?start={row}&limit=24",
        "gallery": f"/api/gallery/{landmark}?order={order}&start={row}&limit=48",
        "large": f"/images/{row}/large",
        "tile": f"/images/{row}/thumbnail",
        "crop": f"/images/{row}/crop/{landmark}",
        "edit": "/api/edits",
    }[kind]
    started = time.perf_counter()
    if kind == "edit":
        edit = {"kind": "rename", "landmark": number, "name": f"client {number} {int(rng.integers(1e9))}"}
        response = client.post(address, json={"edits": [edit]})
    else:
        response = client.get(address)
    seconds = time.perf_counter() - started
    response.raise_for_status()
    return seconds


def _add_row(rows: list[dict[str, Any]], name: str, value: float, unit: str) -> None:
    rows.append({"name": name, "value": round(value, 3), "unit": unit})


def _add_percentiles(rows: list[dict[str, Any]], name: str, seconds: list[float]) -> None:
    for word, percentile in (("median", 50), ("95th percentile", 95), ("slowest", 100)):
        _add_row(rows, f"{name}, {word}", 1000 * float(np.percentile(seconds, percentile)), "ms")


def _read_memory(pid: int, field: str) -> float:
    """Return a memory field of /proc/PID/status in MiB: VmRSS (now) or VmHWM (peak)."""
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(rf"{field}:\s+(\d+) kB", status)
    assert match is not None
    return int(match.group(1)) / 1024


def _read_cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process so far, which hardly depends on other work on the machine."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    user, system = int(fields[11]), int(fields[12])  # clock ticks
    return (user + system) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
