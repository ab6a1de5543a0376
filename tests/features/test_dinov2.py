"""Compare DINOv2 with the implementation in transformers, and test properties of its features."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from selfmark import weights_cache
from selfmark.errors import InputError
from selfmark.features.dinov2 import SHAPES, DinoV2Encoder, TransformerShape, VisionTransformer
from selfmark.features.loading import build_encoder, load_encoder
from tests.features.random_images import random_images

SMALL = TransformerShape(channels=24, heads=3, depth=4, positions=5)
# Mapping from parts of names in transformers to the same parts of names in the official weights files.
OFFICIAL_NAMES = {
    "embeddings.cls_token": "cls_token",
    "embeddings.mask_token": "mask_token",
    "embeddings.position_embeddings": "pos_embed",
    "embeddings.patch_embeddings.projection": "patch_embed.proj",
    "encoder.layer.": "blocks.",
    "attention.o_proj": "attn.proj",
    "layer_scale1.lambda1": "ls1.gamma",
    "layer_scale2.lambda1": "ls2.gamma",
    "layernorm": "norm",
}


@pytest.fixture
def reference_model() -> Any:
    """Build a small DINOv2 of the package transformers with random weights in all layers."""
    transformers = pytest.importorskip("transformers", reason="installed by 'make readers'")
    config = transformers.Dinov2Config(
        hidden_size=SMALL.channels,
        num_hidden_layers=SMALL.depth,
        num_attention_heads=SMALL.heads,
        image_size=SMALL.positions * SMALL.patch,
        patch_size=SMALL.patch,
    )
    model = transformers.Dinov2Model(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3, generator=generator)
    return model


def rename_to_official(model: Any) -> dict[str, Tensor]:
    """Return the state dict of a model of transformers with the names of the official files."""
    state: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        for in_transformers, official in OFFICIAL_NAMES.items():
            name = name.replace(in_transformers, official)
        state[name] = value
    for block in range(SMALL.depth):
        for kind in ("weight", "bias"):
            parts = [state.pop(f"blocks.{block}.attention.{part}_proj.{kind}") for part in "qkv"]
            state[f"blocks.{block}.attn.qkv.{kind}"] = torch.cat(parts)
    return state


@torch.no_grad()
@pytest.mark.parametrize("grid", [(5, 5), (8, 8), (3, 7)])
def test_tokens_match_transformers(reference_model: Any, grid: tuple[int, int]) -> None:
    network = VisionTransformer(SMALL)
    network.load_published(rename_to_official(reference_model))
    images = torch.randn(2, 3, grid[0] * 14, grid[1] * 14, generator=torch.Generator().manual_seed(1))
    output = reference_model(pixel_values=images, output_hidden_states=True)
    middle, last = network(images, (2, 4))
    expected_middle = reference_model.layernorm(output.hidden_states[2])
    for values, expected in ((middle, expected_middle), (last, output.last_hidden_state)):
        assert values.shape == (2, 24, *grid)
        torch.testing.assert_close(values.flatten(2).transpose(1, 2), expected[:, 1:], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_features_are_normalized_outputs_of_two_blocks_for_enlarged_images() -> None:
    encoder = DinoV2Encoder("dinov2-s", SMALL)
    images = random_images(3, 64)
    enlarged = F.interpolate(images, (112, 112), mode="bicubic")  # 8 x 8 patches of 14 pixels
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    normalized = (enlarged - mean[:, None, None]) / std[:, None, None]
    earlier_tokens, last_tokens = (
        F.normalize(values, dim=1) for values in encoder.network(normalized, (3, 4))
    )
    head, parts = encoder.forward_and_describe(images)
    assert (encoder.channels, encoder.part_channels) == (48, 24)
    torch.testing.assert_close(parts, last_tokens)
    torch.testing.assert_close(head, torch.cat([earlier_tokens, last_tokens], 1) / 2**0.5)
    torch.testing.assert_close(encoder(images.flip(0)), head.flip(0))


def test_gradients_reach_all_weights() -> None:
    encoder = DinoV2Encoder("dinov2-s", SMALL)
    with torch.autocast("cpu", torch.bfloat16):
        features = encoder(random_images(1, 64))
    assert features.dtype == torch.float32
    features[:, :5].sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())


def test_the_published_networks_have_the_official_shapes() -> None:
    with torch.device("meta"):
        small_weights, base_weights = (
            VisionTransformer(SHAPES[name]).state_dict() for name in ("dinov2-s", "dinov2-b")
        )
    assert small_weights.keys() == base_weights.keys()
    # The tensors are class token and positions, two of the patch embedding, 14 in each of 12 blocks, and two
    # of the last norm.
    assert len(small_weights) == 2 + 2 + 12 * 14 + 2
    assert small_weights["pos_embed"].shape == (1, 1370, 384)
    assert base_weights["blocks.11.attn.qkv.weight"].shape == (2304, 768)
    # The official files of 88,283,115 and 346,378,731 bytes contain these numbers of float32 values, and
    # 56,811 bytes of names and shapes. The values include a mask token, which our network does not have.
    mask_token_small, mask_token_base = 384, 768
    assert sum(value.numel() for value in small_weights.values()) + mask_token_small == 22_056_576
    assert sum(value.numel() for value in base_weights.values()) + mask_token_base == 86_580_480


def test_weights_come_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFMARK_CACHE", str(tmp_path))
    with pytest.raises(InputError, match="Run 'selfmark weights dinov2-s' to download them"):
        load_encoder("dinov2-s")
    torch.manual_seed(5)
    state = VisionTransformer(SMALL).state_dict() | {"mask_token": torch.zeros(1, 24)}
    path = tmp_path / "dinov2_vits14_pretrain.pth"
    torch.save(state, path)
    published = weights_cache.PUBLISHED_WEIGHTS["dinov2-s"]
    changed = replace(published, sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    with pytest.raises(InputError, match="is not the published"):
        load_encoder("dinov2-s")
    monkeypatch.setitem(weights_cache.PUBLISHED_WEIGHTS, "dinov2-s", changed)
    monkeypatch.setattr("selfmark.features.dinov2.SHAPES", {"dinov2-s": SMALL})
    encoder = load_encoder("dinov2-s")
    assert isinstance(encoder, DinoV2Encoder)
    assert torch.equal(encoder.network.pos_embed, state["pos_embed"])
    assert encoder.info.name == "dinov2-s"
    assert "without labels" in encoder.info.training_data


def test_image_sides_must_be_multiples_of_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selfmark.features.dinov2.SHAPES", {"dinov2-b": SMALL})
    encoder = build_encoder("dinov2-b")
    with pytest.raises(InputError, match="multiple of 8 pixels, not 60"):
        encoder(torch.zeros(1, 3, 60, 60))
