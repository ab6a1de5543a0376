"""Compute features with DINOv2 (Oquab et al. 2023): vision transformers trained without labels.

Layers have the names of the official state dicts, so these state dicts can be loaded. Only the mask token is
omitted, because it is used only in training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from selfmark.features.encoder import Encoder, FeatureInfo, grid_shape
from selfmark.features.imagenet_colors import ColorNormalizer

_EPSILON = 1e-6  # epsilon of all layer norms, as in the published networks
_MLP_RATIO = 4  # hidden channels of an MLP per input channel
_MASK_TOKEN = "mask_token"


@dataclass(frozen=True)
class TransformerShape:
    """Size of a vision transformer.

    Attributes:
        channels: channels of a token.
        heads: attention heads of a block.
        depth: number of blocks.
        patch: side of a patch in pixels.
        positions: side of the grid of stored position embeddings, in patches.
    """

    channels: int
    heads: int
    depth: int = 12
    patch: int = 14
    positions: int = 37


SHAPES: Mapping[str, TransformerShape] = {
    "dinov2-s": TransformerShape(384, 6),
    "dinov2-b": TransformerShape(768, 12),
}


class PatchEmbedding(nn.Module):
    """Linear layer that turns each patch of pixels into a token."""

    def __init__(self, channels: int, patch: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, channels, patch, patch)

    def forward(self, images: Tensor) -> Tensor:
        """Return tokens [B, h * w, C] of images [B, 3, h * patch, w * patch]."""
        tokens: Tensor = self.proj(images).flatten(2).transpose(1, 2)
        return tokens


class Attention(nn.Module):
    """Self-attention with several heads."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(channels, 3 * channels)
        self.proj = nn.Linear(channels, channels)

    def forward(self, tokens: Tensor) -> Tensor:
        """Transform tokens [B, N, C]."""
        queries, keys, values = self.qkv(tokens).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(queries, keys, values)
        projected: Tensor = self.proj(attended.transpose(1, 2).flatten(2))
        return projected


class Perceptron(nn.Module):
    """Two linear layers that transform each token separately."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(channels, _MLP_RATIO * channels)
        self.fc2 = nn.Linear(_MLP_RATIO * channels, channels)

    def forward(self, tokens: Tensor) -> Tensor:
        """Transform tokens [B, N, C]."""
        transformed: Tensor = self.fc2(F.gelu(self.fc1(tokens)))
        return transformed


class LayerScale(nn.Module):
    """A learned factor for each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(channels))

    def forward(self, tokens: Tensor) -> Tensor:
        """Scale tokens [B, N, C]."""
        return tokens * self.gamma


class Block(nn.Module):
    """Transformer block: attention, then a perceptron, each added to its input."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(channels, eps=_EPSILON)
        self.attn = Attention(channels, heads)
        self.ls1 = LayerScale(channels)
        self.norm2 = nn.LayerNorm(channels, eps=_EPSILON)
        self.mlp = Perceptron(channels)
        self.ls2 = LayerScale(channels)

    def forward(self, tokens: Tensor) -> Tensor:
        """Transform tokens [B, N, C]."""
        tokens = tokens + self.ls1(self.attn(self.norm1(tokens)))
        updated: Tensor = tokens + self.ls2(self.mlp(self.norm2(tokens)))
        return updated


class VisionTransformer(nn.Module):
    """Vision transformer of DINOv2."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.shape = shape
        self.cls_token = nn.Parameter(torch.zeros(1, 1, shape.channels))
        self.pos_embed = nn.Parameter(torch.randn(1, 1 + shape.positions**2, shape.channels) * 0.02)
        self.patch_embed = PatchEmbedding(shape.channels, shape.patch)
        self.blocks = nn.ModuleList(Block(shape.channels, shape.heads) for _ in range(shape.depth))
        self.norm = nn.LayerNorm(shape.channels, eps=_EPSILON)

    def forward(self, images: Tensor, layers: tuple[int, ...]) -> list[Tensor]:
        """Return the patch tokens of some layers, after the final layer norm.

        Args:
            images: [B, 3, h * patch, w * patch], normalized with the mean and standard deviation of ImageNet.
            layers: numbers of layers in ascending order, counted from 1.

        Returns:
            One feature map [B, C, h, w] per layer.
        """
        grid = (images.shape[2] // self.shape.patch, images.shape[3] // self.shape.patch)
        tokens = self.patch_embed(images)
        tokens = torch.cat([self.cls_token.expand(len(tokens), -1, -1), tokens], dim=1)
        tokens = tokens + self._position_embeddings(grid)
        maps = []
        for number, block in enumerate(self.blocks, start=1):
            tokens = block(tokens)
            if number in layers:
                maps.append(self.norm(tokens)[:, 1:].transpose(1, 2).unflatten(2, grid))
        return maps

    def _position_embeddings(self, grid: tuple[int, int]) -> Tensor:
        """Return position embeddings [1, 1 + h * w, C], interpolated bicubically to the grid (h, w)."""
        side = math.isqrt(self.pos_embed.shape[1] - 1)
        if grid == (side, side):
            return self.pos_embed
        stored = self.pos_embed[:, 1:].transpose(1, 2).reshape(1, -1, side, side).float()
        resized = F.interpolate(stored, grid, mode="bicubic", align_corners=False)
        return torch.cat([self.pos_embed[:, :1], resized.flatten(2).transpose(1, 2)], dim=1)

    def load_published(self, state: Mapping[str, Tensor]) -> None:
        """Load an official state dict.

        Raises:
            RuntimeError: if a layer is missing, is unknown or has another shape.
        """
        self.load_state_dict({name: value for name, value in state.items() if name != _MASK_TOKEN})


class DinoV2Encoder(Encoder):
    """Features of DINOv2.

    Images are enlarged so that each cell of 8 pixels becomes a patch of 14 pixels. `describe` returns the
    tokens of the last layer, which recognize parts. `forward` concatenates them with the tokens of the layer
    at three quarters of the depth (layer 9 of 12), which contain more information about texture and location.

    Args:
        name: dinov2-s or dinov2-b.
        shape: size of the network; by default the size of the published network.
    """

    def __init__(self, name: str, shape: TransformerShape | None = None) -> None:
        super().__init__()
        self.info = FeatureInfo(
            name, "Apache License 2.0", "142 million photographs from the web, without labels (LVD-142M)"
        )
        self.normalize = ColorNormalizer()
        self.network = VisionTransformer(shape or SHAPES[name])
        depth = self.network.shape.depth
        self.layers = (depth - depth // 4, depth)
        self.channels = 2 * self.network.shape.channels
        self.part_channels = self.network.shape.channels
        self.eval()

    def compute_maps(self, images: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return the maps of both layers, and the map of the last layer, for images [B, 3, S, S] in 0..1."""
        rows, columns = grid_shape(images)
        patch = self.network.shape.patch
        enlarged = F.interpolate(
            images.float(), (rows * patch, columns * patch), mode="bicubic", align_corners=False
        )
        maps = self.network(self.normalize(enlarged), self.layers)
        return maps, maps[1:]
