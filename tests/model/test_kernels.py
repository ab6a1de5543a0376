"""Test Triton kernels: in Triton's interpreter without a GPU, on the GPU, and in training.

Phi is the network that finds and describes keypoints (Stage 1), Psi the network that locates landmarks.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from selfmark.config import Config, Network, override, preset
from selfmark.detector import Detector
from selfmark.images.feed import PixelFeed
from selfmark.model.card import ModelCard
from selfmark.model.cpu_backend import CpuNetworkOps
from selfmark.model.heatmaps import PeakMethod, draw_gaussians, find_peaks, to_cells, to_pixels
from selfmark.model.network import Phi, Psi, prepare_network
from selfmark.model.plain_backend import PlainNetworkOps
from selfmark.train.checkpoints import load_checkpoint, save_checkpoint
from selfmark.train.engine import Phase, build_train_state, run_phase
from selfmark.train.objectives import build_stage1_task, warmup_pair_settings
from selfmark.train.pairs import PairSource
from selfmark.train.point_table import PointTable

NAMES = ("norm", "block", "pool", "stem", "sample", "target", "warp", "network")
CUDA = torch.device("cuda")


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_kernels_match_torch_in_the_interpreter() -> None:
    """Run the checks in another process, because Triton chooses its interpreter when it is imported."""
    root = Path(__file__).parents[2]
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment["PYTHONPATH"] = os.pathsep.join([str(root / "src"), *sys.path])
    command = [sys.executable, "-m", "tests.model.kernel_checks"]
    result = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-500:] + result.stderr[-3000:]
    checks = result.stdout.split()[::2]  # a line looks like "check_norm: ok"
    assert checks == [f"check_{name}:" for name in NAMES]


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_kernels_match_torch_on_the_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.model import kernel_checks

    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    check: Callable[[str], None] = getattr(kernel_checks, f"check_{name}")
    check("cuda")


def test_networks_on_the_cpu_use_the_backend_of_the_cpu() -> None:
    phi = Phi(preset("tiny").network)
    prepare_network(phi, torch.device("cpu"), override(preset("tiny"), {"runtime.precision": "bf16"}).runtime)
    assert type(phi.backend.layers) is PlainNetworkOps
    prepare_network(phi, torch.device("cpu"))
    assert type(phi.backend.layers) is CpuNetworkOps
    with phi.backend.execution.forward_context(phi):
        assert not torch.is_autocast_enabled("cpu")


@pytest.mark.gpu
def test_the_plain_backend_is_used_where_kernels_are_off_or_unsupported() -> None:
    def get_chosen_layers(settings: Network, **runtime: str) -> type[object]:
        phi = Phi(settings)
        changes = {f"runtime.{name}": value for name, value in runtime.items()}
        prepare_network(phi, CUDA, override(preset("fast"), changes).runtime)
        return type(phi.backend.layers)

    default = preset("fast").network
    assert get_chosen_layers(default).__name__ == "FusedNetworkOps"
    assert get_chosen_layers(default, kernels="plain") is PlainNetworkOps
    assert get_chosen_layers(default, precision="fp32") is PlainNetworkOps
    assert get_chosen_layers(Network(channels=96, norm_groups=4)) is PlainNetworkOps


# --- training and prediction on the GPU ----------------------------------------------------------------


def _make_data(images: int, size: int, points: int) -> tuple[torch.Tensor, PointTable]:
    """Return smooth random images, and points at the brightest positions, which a network can learn."""
    generator = torch.Generator(CUDA).manual_seed(1)
    coarse = torch.rand((images, 3, size // 16, size // 16), generator=generator, device=CUDA)
    fine = torch.rand((images, 3, size // 4, size // 4), generator=generator, device=CUDA)

    def enlarge(values: torch.Tensor, side: int) -> torch.Tensor:
        return torch.nn.functional.interpolate(values, size=(side, side), mode="bicubic")

    pictures = (0.7 * enlarge(coarse, size) + 0.3 * enlarge(fine, size)).clamp(0, 1)
    heat = enlarge(coarse.mean(1, keepdim=True), size // 4)[:, 0].clamp(0, 1)
    peaks = find_peaks(heat, 0.5, 2, points, "parabola")
    label = torch.where(peaks.valid, torch.arange(points, device=CUDA).expand(images, -1), -1)
    table = PointTable(to_pixels(peaks.cells), peaks.valid, label, label, torch.arange(images, device=CUDA))
    return (pictures * 255).round().to(torch.uint8), table


def _prepare_training(config: Config, pixels: torch.Tensor, table: PointTable, feed: PixelFeed | None = None):  # type: ignore[no-untyped-def]
    """Return a training state of Stage 1, and a function.

    The function trains this state up to a given iteration and returns the losses.
    """
    torch.manual_seed(0)
    phi = Phi(config.network)
    prepare_network(phi, CUDA, config.runtime)
    state = build_train_state(phi, [(phi, 1.0)], config.optimizer, torch.Generator(CUDA).manual_seed(5))
    feed = feed or PixelFeed(pixels, CUDA)
    source = PairSource(table, warmup_pair_settings(config))
    task = build_stage1_task(phi, feed, source, config, state.generator, seed=3)

    def train_until(stop: int) -> np.ndarray:
        totals: list[float] = []
        run_phase(
            state,
            Phase("test", 0, 0, stop, ()),
            task,
            config.runtime,
            lambda phase, iteration, means, seconds: totals.append(means["total"]),
            lambda: None,
        )
        return np.array(totals)

    return state, train_until


@pytest.mark.gpu
def test_the_fused_backend_learns_like_plain_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train with both backends for 300 steps on the same batches.

    The first losses agree closely; then rounding errors grow, as in any training. Single losses then differ
    by 6 % (root mean square), with correlated differences in neighboring steps. This gives a standard error
    of 2.4 % for means of 25 steps and of 0.75 % for the mean of 250. The limits are about three standard
    errors.
    """
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    pixels, table = _make_data(512, 256, 30)
    changes = {"runtime.log_every": 1, "runtime.checkpoint_every": 10_000}
    fast = override(preset("fast"), changes)
    plain_config = override(fast, {"runtime.kernels": "plain", "runtime.precision": "fp32"})
    ours, theirs = (_prepare_training(config, pixels, table)[1](300) for config in (fast, plain_config))
    difference = ours / theirs - 1
    means = ours.reshape(-1, 25).mean(1) / theirs.reshape(-1, 25).mean(1) - 1
    print(
        f"first two {difference[:2]}, 25-step means {means.round(4)}, after 50 {difference[50:].mean():.5f}"
    )
    assert np.abs(difference[:2]).max() < 1e-3
    assert np.abs(means).max() < 0.075
    assert abs(difference[50:].mean()) < 0.0225
    assert ours[-25:].mean() < 0.2 * ours[0]


@pytest.mark.gpu
def test_a_run_with_cuda_graphs_resumes_from_a_checkpoint_with_the_same_losses(tmp_path: Path) -> None:
    """The restored generator gives the same images, so the next losses agree up to the rounding of bf16."""
    pixels, table = _make_data(64, 128, 8)
    config = override(
        preset("tiny"), {"runtime.log_every": 1, "runtime.checkpoint_every": 10_000, "optimizer.lr": 1e-5}
    )
    original, train_until = _prepare_training(config, pixels, table)
    train_until(10)
    save_checkpoint(original, tmp_path / "state.safetensors")
    expected = train_until(20)
    resumed, train_resumed_until = _prepare_training(config, pixels, table)
    load_checkpoint(resumed, tmp_path / "state.safetensors")
    for parameter, copy in resumed.optimizer.weight_copies.items():
        assert torch.equal(copy, parameter.bfloat16())
    np.testing.assert_allclose(train_resumed_until(20), expected, rtol=2e-3)
    assert torch.equal(resumed.generator.get_state(), original.generator.get_state())
    assert _are_different(expected, _prepare_training(config, pixels, table)[1](10))


def _are_different(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.abs(a / b - 1).max() > 2e-3)


@pytest.mark.gpu
def test_eager_and_captured_steps_give_the_same_losses() -> None:
    pixels, table = _make_data(64, 128, 8)
    config = override(
        preset("tiny"), {"runtime.log_every": 1, "runtime.checkpoint_every": 10_000, "optimizer.lr": 1e-5}
    )
    captured, train_captured_until = _prepare_training(config, pixels, table)
    eager, train_eager_until = _prepare_training(config, pixels, table)
    assert captured.capture
    eager.capture = False
    np.testing.assert_allclose(train_captured_until(20), train_eager_until(20), rtol=2e-3)


@pytest.mark.gpu
def test_images_fetched_from_the_host_equal_those_on_the_device() -> None:
    pixels, table = _make_data(64, 128, 8)
    on_host = PixelFeed(pixels.cpu(), CUDA, device_fraction=0.0)
    on_device = PixelFeed(pixels, CUDA)
    assert on_device.is_on_device
    assert not on_host.is_on_device
    rows = [np.random.default_rng(i).integers(64, size=16) for i in range(50)]
    for expected, fetched in zip(on_device.batches(rows), on_host.batches(rows), strict=True):
        assert torch.equal(fetched, expected)
    stopped = on_host.batches(rows)
    next(stopped)
    stopped.close()  # a consumer that stops early leaves no thread behind
    config = override(preset("tiny"), {"runtime.log_every": 1, "optimizer.lr": 1e-5})
    curves = [_prepare_training(config, pixels, table, feed)[1](12) for feed in (on_device, on_host)]
    np.testing.assert_allclose(curves[0], curves[1], rtol=2e-3)


def _draw_dots(images: int, size: int, colors: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images [N, 3, S, S] uint8 with a dot of each color on gray, and dot positions [N, K, 2]."""
    generator = torch.Generator(CUDA).manual_seed(2)
    xy = torch.rand((images, colors, 2), generator=generator, device=CUDA) * (size - 40) + 20
    line = torch.arange(size, device=CUDA)
    profile = torch.exp(-((line - xy[..., None]) ** 2) / (2 * 4.0**2))  # [N, K, 2, S]
    dot = profile[:, :, 1, :, None] * profile[:, :, 0, None, :]
    # The bits of a color's number are its red, green and blue.
    rgb = (torch.arange(colors, device=CUDA)[:, None] >> torch.arange(3, device=CUDA)) & 1
    paint = torch.einsum("nkhw,kc->nchw", dot, rgb - 0.5)
    return ((0.5 + paint).clamp(0, 1) * 255).round().to(torch.uint8), xy


@pytest.mark.gpu
def test_landmarks_match_those_of_float32() -> None:
    """Psi learns dots of eight colors; the median distance from the float32 landmarks is below 0.1 pixels."""
    config = override(preset("fast"), {"K": 8})
    pixels, xy = _draw_dots(64, 256, 8)
    torch.manual_seed(0)
    psi = Psi(config.network, 8)
    prepare_network(psi, CUDA, config.runtime)
    state = build_train_state(psi, [(psi, 1.0)], config.optimizer, torch.Generator(CUDA))
    target = draw_gaussians(to_cells(xy), 64, 1.5)
    for _ in range(60):
        for rows in torch.arange(64, device=CUDA).split(16):  # type: ignore[no-untyped-call]
            state.optimizer.zero_grad()
            (psi(pixels[rows].float() / 255).float() - target[rows]).square().mean().backward()
            state.optimizer.step()
    mirror = tuple(range(8))
    names = tuple(f"landmark_{index}" for index in mirror)
    plain_network = Psi(config.network, 8)
    plain_network.load_state_dict(psi.state_dict())
    for refine in get_args(PeakMethod):
        card = ModelCard(names, mirror, (), config.images, config.network, refine, True, {})
        ours = Detector(psi, card, "cuda").locate(pixels[:16])
        theirs = Detector(plain_network, card, "cpu").locate(pixels[:16].cpu())
        distance = (ours.xy.cpu() - theirs.xy).norm(dim=-1)
        print(
            f"{refine}: median {distance.median():.4f}, 95th percentile {distance.quantile(0.95):.4f} pixels"
        )
        assert distance.median() < 0.1
        assert (distance < 0.5).float().mean() > 0.9
