"""Check the Triton kernels against torch in float32.

The checks run on CUDA. On the CPU, they run in Triton's interpreter:
`TRITON_INTERPRET=1 python -m tests.model.kernel_checks`.

Phi is the network that finds and describes keypoints (Stage 1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from selfmark.config import BorderColor, override, preset
from selfmark.images.augment import prepend_flip, random_affine, random_color_changes, random_noise
from selfmark.model import heatmaps
from selfmark.model.backend import Backend
from selfmark.model.fused_backend import (
    FusedAugmentOps,
    FusedExecution,
    FusedNetworkOps,
    WeightCopies,
    create_fused_backend,
)
from selfmark.model.kernels import norm, pool, sample, stem, target
from selfmark.model.kernels.block import block
from selfmark.model.network import Phi, ResidualBlock
from selfmark.model.plain_backend import PlainAugmentOps, PlainNetworkOps
from selfmark.train.optimizer import FlatRMSprop

CHANNELS_LAST = torch.channels_last


def _assert_close(ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    """Check the norm of the difference, relative to the norm of the expected tensor.

    Single entries are not compared, because they may be small by cancellation.
    """
    ours, theirs = ours.detach(), theirs.detach()
    error = float((ours.double() - theirs.double()).norm() / theirs.double().norm().clamp_min(1e-12))
    assert error < tolerance, f"relative error {error:.2e}, allowed {tolerance:.0e}"


def _assert_same_gradients(
    ours: Tensor | tuple[Tensor, ...],
    theirs: Tensor | tuple[Tensor, ...],
    inputs: Sequence[Tensor],
    tolerance: float,
    mask: Tensor | float = 1.0,
) -> None:
    """Compare outputs and gradients.

    `mask` multiplies the incoming gradients; it is 0 where rounding decides whether a ReLU is active.
    """
    ours, theirs = ((output,) if isinstance(output, Tensor) else output for output in (ours, theirs))
    incoming = [torch.randn_like(output) * mask for output in ours]
    for our_output, their_output in zip(ours, theirs, strict=True):
        _assert_close(our_output, their_output, tolerance)
    our_gradients = torch.autograd.grad(ours, inputs, incoming)
    their_gradients = torch.autograd.grad(theirs, inputs, incoming)
    for our_gradient, their_gradient in zip(our_gradients, their_gradients, strict=True):
        _assert_close(our_gradient, their_gradient, 10 * tolerance)


def _draw_map(*shape: int, device: str) -> Tensor:
    return (torch.randn(*shape, device=device) * 2 + 0.5).to(memory_format=CHANNELS_LAST).requires_grad_()


def check_norm(device: str) -> None:
    """Check maps that need one or two kernel launches, with and without the bias of a convolution.

    The shapes have one or several groups in each kernel program.
    """
    cuda_shapes = [(2, 32, 64, 32), (3, 64, 128, 32), (2, 256, 64, 32), (2, 256, 4, 32)]
    shapes = cuda_shapes if device == "cuda" else [(2, 16, 8, 8), (2, 128, 40, 8), (2, 128, 4, 8)]
    for images, channels, side, groups in shapes:
        x = _draw_map(images, channels, side, side, device=device)
        weight = (torch.rand(channels, device=device) + 0.5).requires_grad_()
        bias, conv_bias = (torch.randn(channels, device=device).requires_grad_() for _ in range(2))
        for shift in (None, conv_bias):
            normalized = F.group_norm(x if shift is None else x + shift[:, None, None], groups, weight, bias)
            ours = norm.norm_relu(x, weight, bias, groups, shift)
            inputs = [x, weight, bias]
            if shift is not None and channels > groups:  # a norm over a single channel removes any shift
                inputs.append(shift)
            mask = (normalized.detach().abs() > 1e-4).float()
            _assert_same_gradients(ours, F.relu(normalized), inputs, 2e-5, mask)


def check_block(device: str) -> None:
    widths, groups = ([(128, 128), (64, 128)], 32) if device == "cuda" else ([(16, 16), (16, 32)], 4)
    for inputs, outputs in widths:
        module = ResidualBlock(inputs, outputs, groups).to(device).to(memory_format=CHANNELS_LAST)  # type: ignore[call-overload]
        for parameter in module.parameters():
            if parameter.ndim == 1:
                parameter.data = torch.randn_like(parameter)
        x = _draw_map(2, inputs, 8, 8, device=device)
        norms, convs = [module.norm1, module.norm2, module.norm3], [module.conv1, module.conv2, module.conv3]
        if inputs != outputs:
            norms, convs = [*norms, module.skip[0]], [*convs, module.skip[2]]  # type: ignore[index]
        weights = [conv.weight for conv in convs]
        norm_parameters = [p for layer in norms for p in (layer.weight, layer.bias)]
        plain_result = PlainNetworkOps().residual_block(module, x)
        tensors = (x, *weights, *norm_parameters)
        _assert_same_gradients(block(x, groups, weights, norm_parameters), plain_result, tensors, 5e-4)
        if inputs != outputs:
            pooled = PlainNetworkOps().pooled_block(module, x)
            ours = block(x, groups, weights, norm_parameters, pooled=True)
            _assert_same_gradients(ours, pooled, tensors, 5e-4)


def check_pool(device: str) -> None:
    x, coarse = _draw_map(2, 16, 8, 8, device=device), _draw_map(2, 16, 4, 4, device=device)
    _assert_same_gradients(pool.identity_and_pool(x), (x * 1, F.avg_pool2d(x, 2)), (x,), 1e-5)
    expected = x + F.interpolate(coarse, scale_factor=2.0, mode="nearest")
    _assert_same_gradients(pool.upsample_add(x, coarse), expected, (x, coarse), 1e-5)


def check_stem(device: str) -> None:
    images = torch.rand(2, 3, 32, 32, device=device)
    weight = torch.randn(16, 3, 7, 7, device=device).requires_grad_()
    for layout in (images, images.to(memory_format=CHANNELS_LAST)):
        expected = F.conv2d(images - 0.5, weight, None, 2, 3)
        tolerance = 1e-4 if device == "cuda" else 1e-5
        _assert_same_gradients(stem.stem_conv(layout, weight), expected, (weight,), tolerance)


def check_sample(device: str) -> None:
    maps = _draw_map(2, 64, 16, 16, device=device)
    cells = torch.rand(2, 37, 2, device=device) * 20 - 2  # some are outside the map
    _assert_same_gradients(sample.sample(maps, cells), heatmaps.sample_maps(maps, cells), (maps,), 2e-4)


def check_target(device: str) -> None:
    cells = torch.rand(3, 5, 2, device=device) * 16
    valid = torch.rand(3, 5, device=device) > 0.3
    valid[0] = False
    ours = target.draw_target_fused(cells, valid, 16, 0.75)
    assert (ours - heatmaps.draw_target(cells, valid, 16, 0.75)).abs().max() < 1e-5
    assert ours[0].max() == 0


def check_warp(device: str) -> None:
    size, count = (256, 8) if device == "cuda" else (64, 8)
    settings = preset("fast").augment
    generator = torch.Generator(device).manual_seed(3)
    pixels = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, device=device)
    matrix = random_affine(count, size, settings, generator)
    matrix = prepend_flip(matrix, torch.arange(count, device=device) % 2 == 0, size)
    changes, noise = random_color_changes(count, settings, generator), random_noise(count, size, generator)
    borders: tuple[BorderColor, ...] = ("repeated", "black")
    for border in borders:
        plain_result = PlainAugmentOps().augment(pixels, matrix, changes, noise, border)
        ours = FusedAugmentOps().augment(pixels, matrix, changes, noise, border)
        # Rounding may put a sample on either side of a pixel border; both sides give nearly the same value.
        assert (ours - plain_result).abs().max() < 2e-3
        _assert_close(ours, plain_result, 1e-4)


class _SequentialExecution(FusedExecution):
    """Execution without CUDA streams, for the interpreter."""

    def parallel(self, side: Callable[[], Any], main: Callable[[], Any]) -> tuple[Any, Any]:
        return side(), main()


def _create_sequential_backend() -> Backend:
    copies = WeightCopies()
    return Backend(FusedNetworkOps(copies), FusedAugmentOps(), _SequentialExecution(copies))


def check_network(device: str) -> None:
    """Compare maps, descriptors and gradients of Phi in bf16 with float32."""
    changes = {} if device == "cuda" else {"images.size": 64, "network.depth": 2}
    config = override(preset("tiny"), changes)
    torch.manual_seed(0)
    phi = Phi(config.network).to(device)
    phi.to(memory_format=CHANNELS_LAST)  # type: ignore[call-overload]
    size = config.images.size
    images = torch.rand(2, 3, size, size, device=device)
    cells = torch.rand(2, 7, 2, device=device) * config.map_size - 0.5

    def run_phi() -> tuple[Tensor, Tensor, Tensor]:
        maps = phi(images)
        descriptors = phi.describe(maps.features, cells)
        return maps.confidence, descriptors, maps.confidence.float().mean() + descriptors[:, :, :5].mean()

    confidence, descriptors, total = run_phi()
    total.backward()  # type: ignore[no-untyped-call]
    plain_results = {
        name: parameter.grad.clone()
        for name, parameter in phi.named_parameters()
        if parameter.grad is not None
    }
    phi.zero_grad()
    phi.backend = create_fused_backend() if device == "cuda" else _create_sequential_backend()
    with torch.no_grad():
        without_gradients = run_phi()
    optimizer = FlatRMSprop([(phi, 1.0)], config.optimizer, torch.bfloat16)
    phi.backend.execution.use_weight_copies(optimizer.weight_copies)
    ours = run_phi()
    for found in (without_gradients, ours):
        _assert_close(found[0], confidence, 2e-2)
        _assert_close(found[1], descriptors, 5e-2)
    ours[2].backward()  # type: ignore[no-untyped-call]
    copies = optimizer.weight_copies
    for name, parameter in phi.named_parameters():
        leaf = copies.get(parameter, parameter)
        assert leaf.grad is not None, name
        # Gradients of single layers in bf16 differ by several percent, but their direction must agree.
        gradient, expected = leaf.grad.float().flatten(), plain_results[name].flatten()
        cosine = F.cosine_similarity(gradient, expected, dim=0)
        assert cosine > 0.95 or expected.norm() < 1e-6, f"{name}: cosine {float(cosine):.3f}"


CHECKS = (
    check_norm,
    check_block,
    check_pool,
    check_stem,
    check_sample,
    check_target,
    check_warp,
    check_network,
)


def main() -> None:
    torch.set_num_threads(1)
    for check in CHECKS:
        torch.manual_seed(0)
        check("cpu")
        print(f"{check.__name__}: ok", flush=True)


if __name__ == "__main__":
    main()
