"""Compare EfficientNet-Lite with the package efficientnet_lite_pytorch, and test its features."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from selfmark.errors import InputError
from selfmark.features.efficientnet_lite import EfficientNetLiteEncoder
from selfmark.features.encoder import Encoder
from selfmark.features.loading import build_encoder, load_encoder
from selfmark.features.packaged_weights import load_packaged_weights
from selfmark.run.processes import SINGLE_PROCESS
from selfmark.train.optimizer import FlatAdamW
from tests.features.random_images import random_images

# Mapping from the names of networks to the side of the images that they were trained on, in pixels.
VARIANTS = {"efficientnet-lite0": 224, "efficientnet-lite1": 240, "efficientnet-lite2": 260}
LITE0 = "efficientnet-lite0"


@pytest.fixture(scope="module")
def lite0() -> EfficientNetLiteEncoder:
    encoder = load_encoder(LITE0)
    assert isinstance(encoder, EfficientNetLiteEncoder)
    return encoder


def compute_reference_maps(
    name: str, state: dict[str, Tensor], images: Tensor, image_size: int | None
) -> list[Tensor]:
    """Return the outputs of all blocks of the package's network."""
    package = pytest.importorskip("efficientnet_lite_pytorch")
    network = package.EfficientNet.from_name(name, image_size=image_size).eval()
    network.load_state_dict(state)
    maps: list[Tensor] = []
    for block in network._blocks:
        block.register_forward_hook(lambda _, __, output: maps.append(output))
    network.extract_features((images * 255 - 127) / 128)
    return maps


def compare_maps(name: str, state: dict[str, Tensor], size: int, image_size: int | None) -> None:
    """Compare the maps of a variant with those of the package, relative to their largest value.

    Args:
        name: name of the variant.
        state: weights of the variant.
        size: side of the image that both networks get, pixels.
        image_size: image side that the network of the package is built for; None for any side.
    """
    encoder = build_encoder(name)
    assert isinstance(encoder, EfficientNetLiteEncoder)
    encoder.network.load_published(state)
    images = random_images(1, size)
    expected = compute_reference_maps(name, state, images, image_size)
    for block, values in zip(encoder.blocks, encoder.network(images, encoder.blocks), strict=True):
        scale = float(expected[block].abs().max())
        torch.testing.assert_close(values / scale, expected[block] / scale, rtol=0, atol=3e-5)


@torch.no_grad()
@pytest.mark.parametrize("is_native_size", [True, False])
@pytest.mark.parametrize("name", VARIANTS)
def test_maps_match_the_package(name: str, is_native_size: bool) -> None:
    try:
        state = load_packaged_weights(name)
    except InputError as reason:
        if name == LITE0:  # its weights are always installed
            raise
        pytest.skip(str(reason))
    if is_native_size:
        compare_maps(name, state, VARIANTS[name], VARIANTS[name])
    else:
        compare_maps(name, state, 96, None)


@torch.no_grad()
@pytest.mark.parametrize("name", VARIANTS)
def test_maps_with_random_weights_match_the_package(name: str) -> None:
    package = pytest.importorskip("efficientnet_lite_pytorch")
    torch.manual_seed(0)
    state = package.EfficientNet.from_name(name).state_dict()
    compare_maps(name, state, VARIANTS[name], VARIANTS[name])


@pytest.mark.parametrize(
    ("name", "blocks", "channels", "part_channels"),
    [
        ("efficientnet-lite0", (4, 10, 14), 344, 304),
        ("efficientnet-lite1", (6, 14, 19), 344, 304),
        ("efficientnet-lite2", (6, 14, 19), 376, 328),
    ],
)
def test_features_have_the_stated_shapes(
    name: str, blocks: tuple[int, ...], channels: int, part_channels: int
) -> None:
    encoder = build_encoder(name)
    assert isinstance(encoder, EfficientNetLiteEncoder)
    assert encoder.blocks == blocks
    assert (encoder.channels, encoder.part_channels) == (channels, part_channels)
    with torch.no_grad():
        head, parts = encoder.forward_and_describe(random_images(1, 64))
    assert head.shape == (1, channels, 8, 8)
    assert parts.shape == (1, part_channels, 8, 8)
    assert encoder.info.name == name
    assert "Apache" in encoder.info.license
    assert "labels" in encoder.info.training_data


@torch.no_grad()
def test_features_are_normalized_resized_outputs_of_blocks(lite0: EfficientNetLiteEncoder) -> None:
    images = random_images(2, 64)
    maps = lite0.network(images, (4, 10, 14))
    resized = [F.interpolate(values, (8, 8), mode="bilinear", align_corners=False) for values in maps]
    parts = [values / values.norm(dim=1, keepdim=True) for values in resized]
    torch.testing.assert_close(lite0(images), torch.cat(parts, 1) / 3**0.5)
    torch.testing.assert_close(lite0.describe(images), torch.cat(parts[1:], 1) / 2**0.5)
    forward_and_described = lite0.forward_and_describe(images)
    assert torch.equal(forward_and_described[0], lite0(images))
    assert torch.equal(forward_and_described[1], lite0.describe(images))


@torch.no_grad()
def test_features_of_an_image_do_not_depend_on_the_batch(lite0: EfficientNetLiteEncoder) -> None:
    images = random_images(7, 64)  # more images than the encoder processes at a time
    together = lite0(images)
    torch.testing.assert_close(together.norm(dim=1), torch.ones(7, 8, 8))
    torch.testing.assert_close(lite0(images.flip(0)), together.flip(0))
    torch.testing.assert_close(torch.cat([lite0(row[None]) for row in images]), together)


@torch.no_grad()
@pytest.mark.parametrize("blocks", [(4, 10, 14), (1, 4, 10), (2, 3), (6,)])
def test_batches_do_not_change_the_maps(lite0: EfficientNetLiteEncoder, blocks: tuple[int, ...]) -> None:
    images = random_images(7, 64)
    together, in_batches = lite0.network(images, blocks), lite0.network(images, blocks, 2, 3)
    assert len(together) == len(in_batches) == len(blocks)
    for expected, found in zip(together, in_batches, strict=True):
        # The kernel that torch chooses depends on the number of images.
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


def test_features_computed_without_gradients_follow_the_weights() -> None:
    encoder, images = build_encoder(LITE0), random_images(2, 64)
    for _ in range(2):  # the second pass must not reuse kernels that were folded from earlier weights
        with_gradients = encoder(images).detach()
        with torch.no_grad():
            torch.testing.assert_close(encoder(images), with_gradients)
            for parameter in encoder.parameters():
                parameter.mul_(1.1)
    encoder.load_state_dict(build_encoder(LITE0).state_dict())
    with torch.no_grad():
        torch.testing.assert_close(encoder(images), build_encoder(LITE0)(images))


@pytest.mark.parametrize("is_training", [False, True])
@torch.no_grad()
def test_features_follow_the_precision_of_autocast(is_training: bool) -> None:
    encoder, images = load_encoder(LITE0).train(is_training), random_images(2, 64)
    exact_maps = encoder(images)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = encoder(images)
    assert rounded.dtype == torch.float32
    assert 1e-3 < float((rounded - exact_maps).norm(dim=1).mean()) < 0.1  # features are unit vectors
    assert torch.equal(encoder(images), exact_maps)  # the weights in bf16 must not be reused in float32
    by_autocast = _compute_with_autocast_alone(encoder, images)
    torch.testing.assert_close(rounded, by_autocast, rtol=0, atol=0.02)


@torch.enable_grad()
def _compute_with_autocast_alone(encoder: Encoder, images: Tensor) -> Tensor:
    """Compute features in bf16 with gradients enabled; then autocast, not the network, casts the weights."""
    with torch.autocast("cpu", torch.bfloat16):
        return encoder(images).detach()


def test_features_follow_the_weights_that_an_optimizer_changed() -> None:
    encoder, images = build_encoder(LITE0), random_images(2, 64)
    optimizer = FlatAdamW([(encoder, 1.0)], lr=1e-2, weight_decay=0.0)
    with torch.no_grad():
        before = encoder.eval()(images)
    encoder.train()(images).sum().backward()
    optimizer.scale_learning_rate(1.0)
    optimizer.step(SINGLE_PROCESS)
    with torch.no_grad():
        after = encoder.eval()(images)
    torch.testing.assert_close(after, encoder(images).detach())
    assert (after - before).abs().max() > 1e-3


def test_folding_batch_norms_into_convolutions_keeps_the_gradients() -> None:
    encoder = build_encoder(LITE0)
    assert isinstance(encoder, EfficientNetLiteEncoder)
    generator = torch.Generator().manual_seed(3)
    block = encoder.network._blocks[3].double()
    for norm in (block._bn0, block._bn1, block._bn2):
        norm.running_mean.normal_(0, 0.1, generator=generator)
        norm.running_var.uniform_(0.5, 2, generator=generator)
    x = torch.randn(2, 24, 8, 8, dtype=torch.double, generator=generator)
    names, parameters = zip(*block.named_parameters(), strict=True)

    def apply_unfolded(maps: Tensor) -> Tensor:
        """Apply convolutions and batch norms one after the other."""
        y = F.relu6(block._bn0(F.conv2d(maps, block._expand_conv.weight)))
        padded = F.pad(y, (1, 2, 1, 2))  # "SAME" padding of a 5 x 5 kernel with stride 2
        y = F.relu6(block._bn1(F.conv2d(padded, block._depthwise_conv.weight, stride=2, groups=144)))
        return block._bn2(F.conv2d(y, block._project_conv.weight))

    folded_gradients = torch.autograd.grad(block(x).square().sum(), parameters)
    expected_gradients = torch.autograd.grad(apply_unfolded(x).square().sum(), parameters)
    for name, gradient, expected in zip(names, folded_gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected, msg=name)


def test_batch_norms_stay_in_evaluation_mode() -> None:
    encoder = build_encoder(LITE0)
    before = {name: value.clone() for name, value in encoder.named_buffers()}
    encoder.train()
    assert encoder.training
    assert not any(module.training for module in encoder.modules() if isinstance(module, nn.BatchNorm2d))
    features = encoder(random_images(2, 64))
    features[:, 0].sum().backward()
    assert all(torch.equal(value, before[name]) for name, value in encoder.named_buffers())
    assert all(parameter.grad is not None for parameter in encoder.parameters())
    nn.Sequential(encoder).train()  # the encoder may be a part of a larger network
    assert not any(module.training for module in encoder.modules() if isinstance(module, nn.BatchNorm2d))


@torch.no_grad()
def test_mixed_precision_gives_similar_float32_features(lite0: EfficientNetLiteEncoder) -> None:
    images = random_images(2, 64)
    with torch.autocast("cpu", torch.bfloat16):
        features = lite0(images)
    assert features.dtype == torch.float32
    torch.testing.assert_close(features.norm(dim=1), torch.ones(2, 8, 8))
    assert float((features * lite0(images)).sum(1).min()) > 0.99


@pytest.mark.parametrize("size", [0, 8, 100])
def test_image_sides_must_be_positive_multiples_of_32(size: int) -> None:
    with pytest.raises(InputError, match=rf"multiple of 32 pixels, not {size}; change images.size"):
        build_encoder(LITE0)(torch.zeros(1, 3, size, size))


def test_a_state_dict_restores_the_features(lite0: EfficientNetLiteEncoder) -> None:
    random_state = torch.get_rng_state()
    copy = build_encoder(LITE0)
    assert torch.equal(torch.get_rng_state(), random_state), "building draws no random numbers"
    copy.load_state_dict(lite0.state_dict())
    images = random_images(1, 64)
    with torch.no_grad():
        assert torch.equal(copy(images), lite0(images))


def test_the_network_has_no_classifier(lite0: EfficientNetLiteEncoder) -> None:
    count = sum(parameter.numel() for parameter in lite0.parameters())
    assert count < 2.4e6  # the published network has 4.7 million
