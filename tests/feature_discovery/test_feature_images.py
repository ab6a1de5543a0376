"""Test the images of a discovery with features: which ones are used, and how they and their points turn."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from selfmark.config import override, preset
from selfmark.errors import NotEnoughData
from selfmark.feature_discovery import feature_images
from selfmark.feature_discovery.feature_images import (
    build_used_store,
    find_directions,
    load_images_and_encoder,
    select_images,
    settle_orientation,
    turn_images,
    turn_keypoints,
    turn_keypoints_back,
)
from selfmark.image_ref import ImageRef
from selfmark.images import shared_reading
from selfmark.images.feed import PixelFeed
from selfmark.images.store import ImageStore
from selfmark.points import Keypoints
from selfmark.run.folder import Run
from tests.feature_discovery.feature_runs import create_run
from tests.features.random_images import random_images
from tests.features.tiny_encoder import TinyEncoder

CPU = torch.device("cpu")
SIDE = 64


def _build_store(count: int) -> ImageStore:
    no_video = np.full(count, -1)
    return ImageStore(
        pixels=(random_images(count, SIDE) * 255).byte(),
        refs=tuple(ImageRef(Path(f"{row}.png")) for row in range(count)),
        sizes=np.full((count, 2), SIDE),
        regions=np.zeros((count, 4)),
        bounds=np.zeros((count, 4), np.float32),
        video=no_video,
        frame=no_video,
        track=no_video,
        skipped=(),
    )


# --- orientation -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "accuracy", "consistency", "orientation", "rotation"),
    [
        ("auto", 0.95, 0.0, "upright", 40),
        ("auto", 0.8, 1.0, "upright", 40),
        ("auto", 0.6, 0.95, "turned", 40),
        ("auto", 0.6, 0.5, "any", 180),
        ("not-upright", 0.95, 0.95, "turned", 40),
        ("not-upright", 0.95, 0.5, "any", 180),
    ],
)
def test_the_orientation_is_measured_and_stored(
    setting: str,
    accuracy: float,
    consistency: float,
    orientation: str,
    rotation: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = create_run(tmp_path / "run", features__orientation=setting)
    fit = feature_images.fit_template
    monkeypatch.setattr(feature_images, "measure_uprightness", lambda *_: accuracy)
    monkeypatch.setattr(
        feature_images, "fit_template", lambda *args: fit(*args)._replace(consistency=consistency)
    )
    # The decision needs no direction of a single image, so the function that finds directions is removed.
    monkeypatch.delattr(feature_images, "match_template")
    settle_orientation(run, TinyEncoder(), select_images(run, _build_store(8), CPU).feed)
    stored = Run.open(run.path).config
    assert (stored.features.orientation, stored.augment.rotation) == (orientation, rotation)
    assert run.events()[-1]["orientation"] == orientation


@pytest.mark.parametrize(("orientation", "rotation"), [("upright", 12.0), ("turned", 40.0), ("any", 180.0)])
def test_a_given_orientation_is_not_checked(
    orientation: str, rotation: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = create_run(tmp_path / "run", features__orientation=orientation, augment__rotation=12.0)
    monkeypatch.delattr(feature_images, "measure_uprightness")
    settle_orientation(run, TinyEncoder(), select_images(run, _build_store(8), CPU).feed)
    stored = Run.open(run.path).config
    assert (stored.features.orientation, stored.augment.rotation) == (orientation, rotation)


def test_directions_are_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = create_run(tmp_path / "run", runtime__predict_batch=3)
    feed = select_images(run, _build_store(8), CPU).feed
    directions = find_directions(run, TinyEncoder(), feed)
    assert directions.angle.shape == (8,)
    monkeypatch.delattr(feature_images, "describe_rotations")  # A call would fail.
    loaded_again = find_directions(Run.open(run.path), TinyEncoder(), feed)
    for value, loaded in zip(directions, loaded_again, strict=True):
        assert torch.equal(value, loaded)


# --- turned images -----------------------------------------------------------------------------------------


def test_at_most_max_images_are_used(tmp_path: Path) -> None:
    run, store = create_run(tmp_path / "run", features__max_images=8), _build_store(20)
    images = select_images(run, store, CPU)
    assert len(images.rows) == len(images.feed) == 8
    assert torch.equal(images.feed.pixels, store.pixels[images.rows])
    chosen = build_used_store(images)
    assert [str(ref.path) for ref in chosen.refs] == [f"{row}.png" for row in images.rows.tolist()]


@pytest.mark.parametrize("gigabytes", [16.0, 1e-6])
def test_quarter_turns_move_every_pixel(gigabytes: float, tmp_path: Path) -> None:
    run, store = create_run(tmp_path / "run", runtime__store_gigabytes=gigabytes), _build_store(8)
    images = select_images(run, store, CPU)
    turns = torch.arange(8) % 4
    turned = turn_images(run, images, turns * math.pi / 2)
    for row, turn in enumerate(turns.tolist()):
        # `rot90` turns images counterclockwise; positive angles turn them clockwise.
        expected = torch.rot90(store.pixels[row], -turn, (1, 2))
        assert (turned.feed.pixels[row].int() - expected.int()).abs().max() <= 1
    assert (run.path / "turned.u8").exists() == (gigabytes < 1)


def test_keypoints_are_turned_with_their_images_and_back(tmp_path: Path) -> None:
    run, store = create_run(tmp_path / "run", features__max_images=8), _build_store(12)
    angles = torch.linspace(-3, 3, 8)  # radians
    images = turn_images(run, select_images(run, store, CPU), angles)
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(0, 12, (200,), generator=generator).sort().values
    xy = torch.rand(200, 2, generator=generator) * SIDE - 0.5
    points = Keypoints(xy, index, torch.arange(200.0))  # Each point has its own score, which identifies it.
    turned = turn_keypoints(points, images)
    center = (SIDE - 1) / 2
    expected = []
    for number, (x, y) in enumerate(xy.tolist()):
        if int(index[number]) not in images.rows.tolist():
            continue
        used = images.rows.tolist().index(int(index[number]))
        angle = float(angles[used])
        # Multiplication of complex numbers turns a point about the center of the image.
        moved = complex(x - center, y - center) * complex(math.cos(angle), math.sin(angle))
        if max(abs(moved.real), abs(moved.imag)) < SIDE / 2:
            expected.append((number, used, moved.real + center, moved.imag + center))
    assert 50 < len(expected) < 200
    assert turned.score.tolist() == [number for number, *_ in expected]
    assert turned.image_index.tolist() == [used for _, used, *_ in expected]
    torch.testing.assert_close(turned.xy, torch.tensor([(x, y) for *_, x, y in expected]))
    turned_back = turn_keypoints_back(turned, images)
    kept = turned.score.long()
    torch.testing.assert_close(turned_back.xy, xy[kept], atol=1e-3, rtol=0)
    assert torch.equal(turned_back.image_index, index[kept])


def test_upright_images_stay_as_they_are(tmp_path: Path) -> None:
    run, store = create_run(tmp_path / "run"), _build_store(8)
    images = select_images(run, store, CPU)
    points = Keypoints(torch.rand(5, 2) * 60, torch.tensor([0, 1, 1, 4, 7]), torch.ones(5))
    turned = turn_keypoints(points, images)
    assert torch.equal(turned.xy, points.xy)
    assert torch.equal(turn_keypoints_back(replace(turned, score=points.score), images).xy, points.xy)
    assert isinstance(images.feed, PixelFeed)
    assert build_used_store(images) is store


# --- loading on a GPU, for which the meta device stands in ------------------------------------------------


def _create_run_on_files(folder: Path, count: int, threads: list[str]) -> Run:
    """Create a run on image files; the names of the threads that report reading are added to `threads`."""
    refs = [ImageRef(folder / f"{row}.png") for row in range(count)]
    for ref, image in zip(refs, random_images(count, SIDE), strict=True):
        picture = (image * 255).byte().permute(1, 2, 0).numpy()
        assert cv2.imwrite(str(ref.path), picture)
    config = override(preset("tiny"), {"features.name": "efficientnet-lite0", "images.size": SIDE})
    Run.create(folder / "run", config, [], refs)
    return Run.open(folder / "run", lambda event: threads.append(threading.current_thread().name))


def test_a_gpu_is_prepared_while_images_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    run = _create_run_on_files(tmp_path, 10, threads)
    seen: list[object] = []
    monkeypatch.setattr(shared_reading._SharedViews, "load", lambda *arguments: seen.append(arguments))
    with shared_reading.share_reading([]):
        store, encoder = load_images_and_encoder(run, torch.device("meta"))
    on_cpu, _ = load_images_and_encoder(Run.open(run.path), CPU)
    assert torch.equal(store.pixels, on_cpu.pixels)
    assert store.refs == on_cpu.refs
    assert next(encoder.parameters()).is_meta
    assert threads
    assert all(name.startswith("selfmark-read") for name in threads)
    assert len(seen) == 1  # The context of the main thread applies to the reading thread.


def test_an_interrupt_while_a_gpu_is_prepared_stops_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    run = _create_run_on_files(tmp_path, 200, threads)

    def interrupt(name: str, device: torch.device) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(feature_images, "load_encoder", interrupt)
    with pytest.raises(KeyboardInterrupt):
        load_images_and_encoder(run, torch.device("meta"))
    assert not [event for event in run.events() if event["event"] == "images"]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("selfmark-read")]


def test_unusable_images_are_reported_from_the_reading_thread(tmp_path: Path) -> None:
    run = _create_run_on_files(tmp_path, 1, [])
    with pytest.raises(NotEnoughData, match="1 usable image is too few"):
        load_images_and_encoder(run, torch.device("meta"))
