"""Implement EfficientNet-Lite: EfficientNet (Tan and Le 2019) without squeeze-and-excitation and swish.

Layers have the names of the published state dicts, so these state dicts can be loaded. The classifier and
the seventh stage are omitted: no features use them, and without them a saved model is smaller.

Padding follows TensorFlow's "SAME" rule for the actual size of the input, as in the network that was trained.
The package `efficientnet_lite_pytorch` instead computes the padding for a fixed image size: 224 pixels for
lite0, 240 for lite1 and 260 for lite2. Here, the side of an image is a multiple of 32. For such images, both
paddings agree for lite0. For lite1 and lite2 they differ, because some of the maps of an image of 240 or 260
pixels have odd sides. With `image_size=None`, the package gives the same results as this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from selfmark.features.encoder import Encoder, FeatureInfo
from selfmark.run.devices import pad_batch

_EPSILON = 1e-3  # epsilon of all batch norms, as in the published networks
_STEM = 32  # channels after the first convolution
_CPU_BATCH = 4  # images at a time on a CPU; the maps of more images exceed its cache, which doubles the time
# Images at a time on a CPU in the later blocks. The maps of these blocks are small and fit into the cache.
# Each pass reads and reorders the weights of these blocks, which are larger than the maps of an image.
_CPU_LATE_BATCH = 16
_GPU_BATCH = 64  # images at a time on a GPU; a smaller batch is padded, see `pad_batch`


class _Stage(NamedTuple):
    """Sequence of blocks with the same number of output channels.

    The first block has the stride `stride`, and all other blocks have the stride 1.
    """

    repeats: int
    kernel: int
    stride: int
    expansion: int
    channels: int


_STAGES = (  # repeats, kernel, stride, expansion, channels
    _Stage(1, 3, 1, 1, 16),
    _Stage(2, 3, 2, 6, 24),
    _Stage(2, 5, 2, 6, 40),
    _Stage(3, 3, 2, 6, 80),
    _Stage(3, 5, 1, 6, 112),
    _Stage(4, 5, 2, 6, 192),
)  # the published networks have a seventh stage
_DETAIL_STAGE = 2  # index of the last stage with a cell of 8 pixels
_PART_STAGES = (4, 5)  # indices of the stages that recognize parts
SCALES: Mapping[str, tuple[float, float]] = {"lite0": (1.0, 1.0), "lite1": (1.0, 1.1), "lite2": (1.1, 1.2)}
"""Width and depth factors of each variant."""


class SamePaddedConv(nn.Conv2d):
    """Convolution with TensorFlow's "SAME" padding: ceil(size / stride) outputs per axis.

    If the padding is odd, the extra pixel is at the end.
    """

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Convolve maps [B, C, H, W] with the given weight and bias instead of this layer's own."""
        if self.stride[0] == 1:  # the padding is symmetric, so no padded copy is needed
            return F.conv2d(x, weight, bias, padding=self.kernel_size[0] // 2, groups=self.groups)
        pad_y, pad_x = (self.pad_amounts(side) for side in x.shape[2:])
        return F.conv2d(F.pad(x, (*pad_x, *pad_y)), weight, bias, self.stride, groups=self.groups)

    def fold(self, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
        """Return weight and bias of a convolution that includes a batch norm with fixed statistics.

        The norm is applied to the weights instead of the result of the convolution. This saves a pass over
        the maps, and gradients still reach both layers.
        """
        assert norm.running_mean is not None
        assert norm.running_var is not None
        scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
        bias = torch.addcmul(norm.bias, norm.running_mean, scale, value=-1)
        return self.weight * scale[:, None, None, None], bias

    def pad_amounts(self, side: int) -> tuple[int, int]:
        """Return the padding before and after `side` pixels along one axis."""
        kernel, stride = self.kernel_size[0], self.stride[0]
        total = max((math.ceil(side / stride) - 1) * stride + kernel - side, 0)
        return total // 2, total - total // 2


class NormalizedConv(NamedTuple):
    """Convolution with the batch norm that follows it.

    Attributes:
        conv: the convolution.
        norm: its batch norm.
        has_relu6: whether a ReLU6 follows.
    """

    conv: SamePaddedConv
    norm: nn.BatchNorm2d
    has_relu6: bool

    def __call__(self, x: Tensor) -> Tensor:
        """Transform maps [B, C, H, W]."""
        return self.fold()(x)

    def fold(self) -> FoldedConv:
        """Return the convolution and its norm as one layer with the current weights."""
        return FoldedConv(self.conv, *self.conv.fold(self.norm), self.has_relu6)


class FoldedConv(NamedTuple):
    """Convolution that includes its batch norm, to be applied to several batches of images.

    Attributes:
        conv: the convolution, for its stride and padding.
        weight: weight that includes the norm.
        bias: bias that includes the norm.
        has_relu6: whether a ReLU6 follows.
    """

    conv: SamePaddedConv
    weight: Tensor
    bias: Tensor
    has_relu6: bool

    def __call__(self, x: Tensor) -> Tensor:
        """Transform maps [B, C, H, W]."""
        y = self.conv.convolve(x, self.weight, self.bias)
        return F.relu6(y, inplace=True) if self.has_relu6 else y

    def cast(self, dtype: torch.dtype) -> FoldedConv:
        """Return the same layer with weight and bias in another precision."""
        return self._replace(weight=self.weight.to(dtype), bias=self.bias.to(dtype))


class FoldedBlock(NamedTuple):
    """Block whose convolutions include their batch norms. If `has_skip`, the input is added to the result."""

    layers: tuple[FoldedConv, ...]
    has_skip: bool

    def __call__(self, x: Tensor) -> Tensor:
        """Transform maps [B, C, H, W]."""
        y = x
        for layer in self.layers:
            y = layer(y)
        return x + y if self.has_skip else y

    def cast(self, dtype: torch.dtype) -> FoldedBlock:
        """Return the same block with all weights in another precision."""
        return self._replace(layers=tuple(layer.cast(dtype) for layer in self.layers))


class FoldedNetwork(NamedTuple):
    """All layers of a network, with their batch norms folded into the convolutions."""

    stem: FoldedConv
    blocks: tuple[FoldedBlock, ...]

    def apply_blocks(self, x: Tensor, first: int, wanted_blocks: Sequence[int]) -> list[Tensor]:
        """Apply the blocks from `first` on to maps; return the maps of the wanted blocks, ascending."""
        maps = []
        for number in range(first, max(wanted_blocks) + 1):
            x = self.blocks[number](x)
            if number in wanted_blocks:
                maps.append(x)
        return maps

    def cast(self, dtype: torch.dtype) -> FoldedNetwork:
        """Return the same network with all weights in another precision."""
        return FoldedNetwork(self.stem.cast(dtype), tuple(block.cast(dtype) for block in self.blocks))


class InvertedResidual(nn.Module):
    """Inverted residual block: 1x1 expansion, depthwise convolution, 1x1 projection, skip connection."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.has_skip = stride == 1 and inputs == outputs
        self._expand_conv = SamePaddedConv(inputs, hidden, 1, bias=False) if expansion > 1 else None
        self._bn0 = nn.BatchNorm2d(hidden, eps=_EPSILON) if expansion > 1 else None
        self._depthwise_conv = SamePaddedConv(hidden, hidden, kernel, stride, groups=hidden, bias=False)
        self._bn1 = nn.BatchNorm2d(hidden, eps=_EPSILON)
        self._project_conv = SamePaddedConv(hidden, outputs, 1, bias=False)
        self._bn2 = nn.BatchNorm2d(outputs, eps=_EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        """Transform maps [B, C, H, W]."""
        return self.fold()(x)

    def fold(self) -> FoldedBlock:
        """Return the block with its batch norms folded into the current weights."""
        return FoldedBlock(tuple(layer.fold() for layer in self.layers()), self.has_skip)

    def layers(self) -> list[NormalizedConv]:
        """Return the convolutions in order, without the skip connection."""
        layers = [
            NormalizedConv(self._depthwise_conv, self._bn1, has_relu6=True),
            NormalizedConv(self._project_conv, self._bn2, has_relu6=False),
        ]
        if self._expand_conv is not None and self._bn0 is not None:
            layers.insert(0, NormalizedConv(self._expand_conv, self._bn0, has_relu6=True))
        return layers


class EfficientNetLite(nn.Module):
    """The first six stages of EfficientNet-Lite.

    Attributes:
        last_blocks: index of the last block of each stage.
        stage_channels: output channels of each stage.
    """

    def __init__(self, variant: str = "lite0") -> None:
        super().__init__()
        width, depth = SCALES[variant]
        self._conv_stem = SamePaddedConv(3, _STEM, 3, 2, bias=False)
        self._bn0 = nn.BatchNorm2d(_STEM, eps=_EPSILON)
        self.last_blocks: list[int] = []
        self.stage_channels: list[int] = []
        blocks: list[InvertedResidual] = []
        inputs = _STEM
        for number, stage in enumerate(_STAGES):
            outputs = _round_channels(stage.channels * width)
            repeats = stage.repeats if number == 0 else math.ceil(stage.repeats * depth)
            for repeat in range(repeats):
                stride = stage.stride if repeat == 0 else 1
                blocks.append(InvertedResidual(inputs, outputs, stage.kernel, stride, stage.expansion))
                inputs = outputs
            self.last_blocks.append(len(blocks) - 1)
            self.stage_channels.append(outputs)
        self._blocks = nn.ModuleList(blocks)
        # What `_fold_norms` built last: precision and state of the weights, and the folded network.
        self._folded: tuple[torch.dtype, tuple[tuple[int, int], ...], FoldedNetwork] | None = None

    def forward(
        self, images: Tensor, blocks: tuple[int, ...], batch: int = 0, late_batch: int = 0
    ) -> list[Tensor]:
        """Return the feature maps of some blocks.

        Args:
            images: [B, 3, H, W] in 0..1.
            blocks: indices of the blocks, ascending.
            batch: maximum number of images at a time; 0 for all.
            late_batch: the same for the blocks after `_DETAIL_STAGE`, whose maps are smaller.

        Returns:
            One map [B, C, h, w] per block.
        """
        folded = self._fold_norms()
        last_early = self.last_blocks[_DETAIL_STAGE]
        early_blocks = sorted({last_early, *(number for number in blocks if number < last_early)})
        late_blocks = [number for number in blocks if number > last_early]

        def compute_early(rows: Tensor) -> list[Tensor]:
            return folded.apply_blocks(folded.stem((rows * 255 - 127) / 128), 0, early_blocks)

        def compute_late(rows: Tensor) -> list[Tensor]:
            return folded.apply_blocks(rows, last_early + 1, late_blocks)

        maps = _compute_in_batches(compute_early, images, batch)
        if late_blocks:
            maps += _compute_in_batches(compute_late, maps[-1], late_batch)
        return [
            values
            for number, values in zip(early_blocks + late_blocks, maps, strict=True)
            if number in blocks
        ]

    def _fold_norms(self) -> FoldedNetwork:
        """Fold all batch norms into the current weights.

        In evaluation mode without gradients, the norms are folded again only after a weight or the precision
        of autocast changed. On a CPU, folding takes an eighth as long as computing the features of one image.
        An optimizer may change weights but not their address and version, so `train` discards the folded
        network. Without gradients, the weights are also cast here, because autocast would cast them again in
        every pass.
        """
        if torch.is_grad_enabled():
            return self._fold_now()
        dtype = _autocast_dtype(self._conv_stem.weight)
        if self.training:
            return self._fold_now().cast(dtype)
        tensors = (*self.parameters(), *self.buffers())
        state = tuple((tensor.data_ptr(), tensor._version) for tensor in tensors)
        if self._folded is None or self._folded[:2] != (dtype, state):
            self._folded = (dtype, state, self._fold_now().cast(dtype))
        return self._folded[2]

    def _fold_now(self) -> FoldedNetwork:
        blocks = (self.block(number) for number in range(len(self._blocks)))
        return FoldedNetwork(self.stem.fold(), tuple(block.fold() for block in blocks))

    @property
    def stem(self) -> NormalizedConv:
        """Return the first convolution; its inputs are (color - 127) / 128 for colors in 0..255."""
        return NormalizedConv(self._conv_stem, self._bn0, has_relu6=True)

    def block(self, number: int) -> InvertedResidual:
        """Return the block with this index."""
        block = self._blocks[number]
        assert isinstance(block, InvertedResidual)
        return block

    def load_published(self, state: Mapping[str, Tensor]) -> None:
        """Load a published state dict; its classifier and seventh stage are ignored.

        Raises:
            RuntimeError: if layers are missing or have another shape.
        """
        own_keys = self.state_dict().keys()
        self.load_state_dict({name: value for name, value in state.items() if name in own_keys})

    def train(self, mode: bool = True) -> Self:
        """Set the mode of all layers except batch norms, which always use the published statistics."""
        super().train(mode)
        self._folded = None
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return self


class EfficientNetLiteEncoder(Encoder):
    """Features of EfficientNet-Lite.

    Stages are counted from 1. `describe` joins the maps of the last blocks of stages 5 and 6, with cells of
    16 and 32 pixels, resized to cells of 8 pixels. `forward` joins them with the map of the last block of
    stage 3, with cells of 8 pixels, for precise locations.

    Args:
        variant: lite0, lite1 or lite2.
    """

    size_multiple = 32

    def __init__(self, variant: str = "lite0") -> None:
        super().__init__()
        self.info = FeatureInfo(
            f"efficientnet-{variant}", "Apache License 2.0", "ImageNet photographs with class labels"
        )
        self.network = EfficientNetLite(variant)
        stages = (_DETAIL_STAGE, *_PART_STAGES)
        self.blocks = tuple(self.network.last_blocks[stage] for stage in stages)
        sizes = [self.network.stage_channels[stage] for stage in stages]
        self.channels = sum(sizes)
        self.part_channels = sum(sizes[1:])
        self.eval()

    def compute_maps(self, images: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return the maps of three blocks, and the maps of the last two of them, for images in 0..1."""
        images = images.contiguous(memory_format=torch.channels_last)
        is_cpu = images.device.type == "cpu"
        if torch.is_grad_enabled() or (self.training and not is_cpu):
            maps = self.network(images, self.blocks)  # all training steps have the same number of images
        elif is_cpu:
            maps = self.network(images, self.blocks, _CPU_BATCH, _CPU_LATE_BATCH)
        else:
            padded = self.network(pad_batch(images, _GPU_BATCH), self.blocks, _GPU_BATCH, _GPU_BATCH)
            maps = [values[: len(images)] for values in padded]
        return maps, maps[1:]


def _compute_in_batches(compute: Callable[[Tensor], list[Tensor]], rows: Tensor, batch: int) -> list[Tensor]:
    """Apply a function to at most `batch` rows at a time (0 for all) and join each of its results."""
    if batch == 0 or len(rows) <= batch:
        return compute(rows)
    parts = [compute(part) for part in torch.split(rows, batch)]
    return [torch.cat(maps) for maps in zip(*parts, strict=True)]


def _autocast_dtype(weight: Tensor) -> torch.dtype:
    """Return the precision of convolutions with this weight: the precision of autocast if that is on."""
    kind = weight.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype


def _round_channels(channels: float, divisor: int = 8) -> int:
    """Round to the nearest multiple of the divisor, or up if rounding would lose more than 10 %."""
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * channels else rounded
