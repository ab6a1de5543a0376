"""Compute the first convolution, 7x7 with stride 2, as 4x4 with stride 1 after space-to-depth.

Tensor cores need many input channels. Space-to-depth turns each 2x2 square of pixels with 3 channels into one
cell with 12 channels (padded to 16). Along each axis, tap k of the 7x7 kernel becomes tap (k + 1) // 2 of the
4x4 kernel, applied to pixel (k + 1) % 2 of the square.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from selfmark.model.kernels.launch import Recordable


@Recordable
@triton.jit
def _space_to_depth_kernel(
    images, out, size, side, image_stride, channel_stride, row_stride, column_stride, ROWS: tl.constexpr
):
    """Write images - 0.5 as cells [side, side, 16]; channels 12 to 15 are zero.

    Along each axis, there are 2 cells of zero padding before the image and 1 after it.
    """
    image = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]
    channel = tl.arange(0, 16)[None, :]
    x = 2 * (at % side - 2) + channel % 2
    y = 2 * (at // side - 2) + (channel // 2) % 2
    live = (x >= 0) & (x < size) & (y >= 0) & (y < size) & (channel < 12)
    source = (
        images + image * image_stride + (channel // 4) * channel_stride + y * row_stride + x * column_stride
    )
    value = tl.where(live, tl.load(source, mask=live, other=0.0).to(tl.float32) - 0.5, 0.0)
    to = out + (image * side * side + at) * 16 + channel
    tl.store(to, value.to(out.dtype.element_ty), mask=at < side * side)


def space_to_depth(images: Tensor, dtype: torch.dtype) -> Tensor:
    """Subtract 0.5 from images [B, 3, S, S]; return cells [B, 16, S/2 + 3, S/2 + 3], channels-last."""
    count, _, size, _ = images.shape
    side, rows = size // 2 + 3, 256
    out = torch.empty(
        (count, 16, side, side), dtype=dtype, device=images.device, memory_format=torch.channels_last
    )
    _space_to_depth_kernel[(count, triton.cdiv(side * side, rows))](
        images, out, size, side, *images.stride(), ROWS=rows
    )
    return out


def stem_conv(images: Tensor, weight: Tensor) -> Tensor:
    """Return conv2d(images - 0.5, weight, stride=2, padding=3) for weight [C, 3, 7, 7]."""
    outputs = weight.shape[0]
    taps = F.pad(weight, (1, 0, 1, 0)).view(outputs, 3, 4, 2, 4, 2).permute(0, 1, 3, 5, 2, 4)
    taps = F.pad(taps.reshape(outputs, 12, 4, 4), (0, 0, 0, 0, 0, 4))
    return F.conv2d(space_to_depth(images, weight.dtype), taps.contiguous(memory_format=torch.channels_last))
