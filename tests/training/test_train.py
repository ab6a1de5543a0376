"""Test adaptation, the training steps and the whole command, on very small images."""

import contextlib
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from training.keypoints import photographs, shapes, speed, train
from training.keypoints.adapt import adapt
from training.keypoints.data import LabeledImages
from training.keypoints.homography import invert, sample_pairs, warp_points
from training.keypoints.light import blur, compress, relight
from training.keypoints.network import TrainingNetwork
from training.keypoints.optimize import Log, compute_learning_rate, optimize
from training.keypoints.phases import build_joint_step, build_shapes_step, choose_positions
from training.keypoints.settings import TINY, Adapt, Data, Light, Views

SMALL = replace(
    TINY,
    data=Data(side=64, max_points=32, shapes=8, scenes=2, animals=1, photographs=3, held_out=1),
    shape_views=Views(side=32, rotation=180.0, shift=0.2),
    views=Views(side=32),
    adapt_views=Views(side=64),
    adapt=Adapt(views=2, batch=4),
    training=replace(TINY.training, batch=4, shapes_iterations=2, joint_iterations=(1, 1), described=16),
)


def draw_images(count, side=64):
    images, points = [], np.full((count, 32, 2), np.nan, np.float32)
    for index in range(count):
        image, xy = shapes.draw(np.random.default_rng([4, index]), side)
        images.append(np.round(image * 255).astype(np.uint8))
        points[index, : len(xy)] = xy[:32]
    return LabeledImages(torch.from_numpy(np.stack(images)), torch.from_numpy(points))


@pytest.mark.parametrize("phase", ["shapes", "joint"])
def test_twenty_steps_lower_the_loss(phase):
    torch.manual_seed(0)
    images, network = draw_images(16), TrainingNetwork()
    settings = replace(SMALL, views=Views(side=48, shift=0.05, roam=0.05))

    def build_step(seed):
        generator = torch.Generator().manual_seed(seed)
        if phase == "shapes":
            return build_shapes_step(network, images, settings, generator)
        return build_joint_step(network, images, images, settings, generator)

    def measure_losses():
        same_batches_step = build_step(1)  # The seed is the same before and after training.
        with torch.no_grad():
            sampled_losses = [same_batches_step() for _ in range(6)]
        return {
            name: torch.stack([loss[name] for loss in sampled_losses]).mean() for name in sampled_losses[0]
        }

    before = measure_losses()
    generator = torch.Generator()
    optimize(network, build_step(2), 20, 2e-3, settings.training, generator, phase, Log())
    after = measure_losses()
    assert set(after) == ({"detector"} if phase == "shapes" else {"detector", "descriptor"})
    for name in after:
        assert after[name] < 0.8 * before[name], name


class BrightnessDetector(torch.nn.Module):
    """A detector that scores every pixel by its brightness."""

    def forward(self, rgb):
        return torch.sigmoid(rgb[:, 0] * 40 - 20), None


def test_adaptation_makes_labels_from_repeated_detections():
    image = torch.zeros(2, 64, 64, dtype=torch.uint8)
    centers = [[(20, 30), (44, 18)], [(33, 33)]]
    for index, spots in enumerate(centers):
        for x, y in spots:
            image[index, y - 1 : y + 2, x - 1 : x + 2] = 255
    settings = replace(
        SMALL, adapt=Adapt(views=8, batch=1), adapt_light=replace(SMALL.adapt_light, noise=0.0)
    )
    labeled = adapt(BrightnessDetector(), image, settings, torch.Generator().manual_seed(0))
    for index, spots in enumerate(centers):
        labels = labeled.points[index][~labeled.points[index, :, 0].isnan()]
        assert len(labels) == len(spots)
        distances = torch.cdist(labels, torch.tensor(spots, dtype=torch.float32))
        assert distances.min(dim=1).values.max() < 0.8
    assert labeled.compute_points_per_image() == 1.5


def test_chosen_positions_correspond_in_both_views():
    generator = torch.Generator().manual_seed(0)
    images = draw_images(12)
    first, second = sample_pairs(12, 64, SMALL.views, generator)
    to_image = torch.cat((first, second))
    first_xy, second_xy, valid = choose_positions(
        images.points, to_image, invert(to_image), 32, 64, SMALL, generator
    )
    assert first_xy.shape == (12, 16, 2)
    assert 0.1 < valid.float().mean() < 1
    torch.testing.assert_close(
        warp_points(first_xy, first)[valid], warp_points(second_xy, second)[valid], atol=1e-2, rtol=0
    )
    for xy in (first_xy, second_xy):  # Positions are at least 4 pixels inside the 32 x 32 pixels of the view.
        assert ((xy[valid] >= 4) & (xy[valid] <= 27)).all()


# --- light -----------------------------------------------------------------------------------------


def test_relighting_keeps_contrast_and_inverts_it_on_request():
    view = torch.full((64, 1, 48, 48), 0.2)
    view[..., 24:, 24:] = 0.8
    all_views = torch.ones(64, dtype=torch.bool)

    def measure_contrast(views):
        return views[..., 32:44, 32:44].mean(dim=(1, 2, 3)) - views[..., 4:16, 4:16].mean(dim=(1, 2, 3))

    changed = relight(view, Light(), torch.Generator().manual_seed(0))
    assert changed.min() >= 0
    assert changed.max() <= 1
    assert (changed - view).abs().amax(dim=(1, 2, 3)).min() > 0.01
    assert (measure_contrast(changed) > 0.05).float().mean() > 0.9
    inverted = relight(view, Light(), torch.Generator().manual_seed(0), all_views)
    assert (measure_contrast(inverted) < -0.05).float().mean() > 0.9


def test_blur_matches_opencv():
    image = np.random.default_rng(0).random((40, 40), np.float32)
    views = torch.from_numpy(image)[None, None].repeat(3, 1, 1, 1)
    blurred = blur(views, torch.tensor([0.0, 1.5, 3.0]))
    torch.testing.assert_close(blurred[0], views[0])
    for sigma, view in ((1.5, blurred[1, 0]), (3.0, blurred[2, 0])):
        expected = cv2.GaussianBlur(image, (39, 39), sigma, borderType=cv2.BORDER_REFLECT_101)
        np.testing.assert_allclose(view, expected, atol=1e-5)


def test_compression_rounds_the_cosine_transform_of_each_block():
    image = np.random.default_rng(0).random((24, 24), np.float32) * 0.2 + 0.4
    views = torch.from_numpy(image)[None, None].repeat(2, 1, 1, 1)
    result = compress(views, torch.tensor([1e-6, 0.1]))
    torch.testing.assert_close(result[0], views[0], atol=1e-4, rtol=0)
    block = cv2.dct(image[8:16, 16:24])
    rows, columns = np.mgrid[:8, :8]
    steps = 0.1 * (0.5 + (rows + columns) / 4)
    expected = cv2.idct(np.round(block / steps) * steps)
    np.testing.assert_allclose(result[1, 0, 8:16, 16:24], expected, atol=1e-4)


def test_a_change_applies_to_its_fraction_of_views():
    view = torch.full((32, 1, 16, 16), 0.5)
    noise_only = Light(
        contrast=(1, 1), brightness=0, gamma=(1, 1), field_fraction=0, blur_fraction=0, streak_fraction=0,
        coarse_fraction=0, block_fraction=0, noise_fraction=0.25,
    )  # fmt: skip

    def find_changed_views(seed):
        difference = relight(view, noise_only, torch.Generator().manual_seed(seed)) - view
        return difference.abs().amax(dim=(1, 2, 3)) > 1e-4

    assert find_changed_views(0).sum() == 8
    assert not torch.equal(find_changed_views(0), find_changed_views(1))


def test_the_learning_rate_rises_then_falls_to_zero():
    options = replace(SMALL.training, warmup=0.1)
    rates = [compute_learning_rate(done, 100, 2e-3, options) for done in range(100)]
    assert np.argmax(rates) in (9, 10)
    assert (np.diff(rates[:10]) > 0).all()
    assert (np.diff(rates[10:]) < 0).all()
    assert 1.9e-3 < max(rates) <= 2e-3
    assert rates[-1] < 1e-5


# --- the command -----------------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Return a function that runs the command in this process with tiny settings and returns its folder."""
    photographs.collect(tmp_path / "photos")
    monkeypatch.setitem(train.CHOICES, "tiny", SMALL)
    monkeypatch.setattr(train, "open_drawing_pool", open_single_thread_pool)

    def run(name, *more):
        out = tmp_path / name
        words = ["train", "--out", str(out), "--photos", str(tmp_path / "photos"), "--settings", "tiny"]
        monkeypatch.setattr(sys, "argv", [*words, "--device", "cpu", *more])
        train.main()
        return out

    return run


@contextlib.contextmanager
def open_single_thread_pool():
    """Return a pool with one thread, because processes take seconds to start."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


def test_the_command_writes_weights_log_and_sheet(command):
    out = command("out", "--seed", "3")
    names = {"phase0-shapes.safetensors", "phase1-joint.safetensors", "selfmark.safetensors"}
    assert {path.name for path in out.iterdir()} == names | {"log.json", "sheet.png", "state.safetensors"}
    weights = load_file(out / "selfmark.safetensors")
    assert sum(tensor.numel() for tensor in weights.values()) == 1_300_865
    assert all(tensor.isfinite().all() for tensor in weights.values())
    record = json.loads((out / "log.json").read_text())
    assert record["settings"]["seed"] == 3
    assert set(record["scores"]) == {"shapes", "joint 1", "joint 2"}
    assert record["events"][0]["event"] == "start"


def test_a_training_interrupted_twice_gives_the_same_weights(command, monkeypatch):
    uninterrupted = load_file(command("whole") / "selfmark.safetensors")
    original_optimize, started = train.optimize, []

    def interrupt(*arguments):
        phase = arguments[-2]
        started.append(phase)
        first_interruption = ["shapes", "joint 1"]
        second_interruption = ["shapes", "joint 1", "joint 1", "joint 2"]  # Joint 1 has started again.
        if started in (first_interruption, second_interruption):
            raise KeyboardInterrupt
        original_optimize(*arguments)

    monkeypatch.setattr(train, "optimize", interrupt)
    with pytest.raises(KeyboardInterrupt):
        command("cut")
    with pytest.raises(KeyboardInterrupt):
        command("cut", "--resume")
    out = command("cut", "--resume")
    assert started == ["shapes", "joint 1", "joint 1", "joint 2", "joint 2"]
    resumed = load_file(out / "selfmark.safetensors")
    assert all(torch.equal(resumed[name], uninterrupted[name]) for name in uninterrupted)
    record = json.loads((out / "log.json").read_text())
    assert set(record["scores"]) == {"shapes", "joint 1", "joint 2"}


def test_resuming_fails_with_a_clear_message(command, capsys):
    with pytest.raises(SystemExit):
        command("nothing", "--resume")
    assert "nothing to resume" in capsys.readouterr().err
    command("done")
    with pytest.raises(SystemExit):
        command("done", "--resume", "--seed", "1")
    assert "other settings" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command("done", "--resume")
    assert "finished" in capsys.readouterr().err


def test_the_speed_report_lists_phases_and_operations(monkeypatch):
    monkeypatch.setattr(speed, "open_drawing_pool", open_single_thread_pool)
    text = speed.measure_speed(SMALL, 1, torch.device("cpu"))
    assert all(word in text for word in ("shapes: ", "joint: ", "adaptation: ", "convolution"))
