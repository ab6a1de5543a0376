"""Where training reads its pixels: on the device if they fit there, otherwise from the host."""

from __future__ import annotations

import torch
from torch import Tensor

_SHARE_OF_FREE_MEMORY = 0.4  # the rest is for activations


class PixelFeed:
    """Batches of float images [B, 3, S, S] in 0..1 from a uint8 store [N, 3, S, S]."""

    def __init__(self, pixels: Tensor, device: torch.device) -> None:
        self.device = device
        self.pixels = pixels
        if device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(device)
            if pixels.numel() < _SHARE_OF_FREE_MEMORY * free:
                self.pixels = pixels.to(device)

    def __len__(self) -> int:
        return len(self.pixels)

    def gather(self, index: Tensor) -> Tensor:
        """The images `index` [B] on the training device."""
        return self._to_float(self.pixels[index.to(self.pixels.device)])

    def slice(self, start: int, stop: int) -> Tensor:
        """Images start..stop-1 on the training device."""
        return self._to_float(self.pixels[start:stop])

    def _to_float(self, pixels: Tensor) -> Tensor:
        return pixels.to(self.device, non_blocking=True).float() / 255
