"""Test encoders on a GPU: features are the same as on the CPU, and no operation waits for the GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from selfmark.features.dinov2 import DinoV2Encoder, TransformerShape
from selfmark.features.encoder import Encoder
from selfmark.features.loading import build_encoder
from tests.features.random_images import random_images


@pytest.fixture(params=["efficientnet-lite0", "efficientnet-lite2", "dinov2"])
def encoder(request: pytest.FixtureRequest) -> Encoder:
    if request.param == "dinov2":
        torch.manual_seed(0)
        return DinoV2Encoder("dinov2-s", TransformerShape(channels=48, heads=3, depth=4))
    return build_encoder(request.param)


@contextlib.contextmanager
def forbid_synchronization() -> Iterator[None]:
    """Raise an error if an operation waits for the GPU."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def compare_features(features: Tensor, expected: Tensor, min_cosine: float) -> None:
    """Compare unit features of the GPU with those of the CPU."""
    assert features.dtype == torch.float32
    assert float((features.cpu() * expected).sum(1).min()) > min_cosine


@pytest.mark.gpu
def test_a_gpu_gives_the_features_of_the_cpu(encoder: Encoder) -> None:
    images = random_images(3, 64)
    with torch.no_grad():
        expected = encoder.forward_and_describe(images)
        encoder.to("cuda")
        full_precision = encoder.forward_and_describe(images.cuda())
        with torch.autocast("cuda", torch.bfloat16):
            mixed_precision = encoder.forward_and_describe(images.cuda())
    for number in range(2):
        compare_features(full_precision[number], expected[number], 0.999)
        compare_features(mixed_precision[number], expected[number], 0.98)


@pytest.mark.gpu
@pytest.mark.parametrize("has_gradients", [False, True])
def test_no_operation_waits_for_the_gpu(encoder: Encoder, has_gradients: bool) -> None:
    encoder.to("cuda")
    images = random_images(2, 64).cuda()
    with forbid_synchronization(), torch.set_grad_enabled(has_gradients):
        with torch.autocast("cuda", torch.bfloat16):
            head, parts = encoder.forward_and_describe(images)
        if has_gradients:
            (head[:, 0].sum() + parts[:, 0].sum()).backward()
