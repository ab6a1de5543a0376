"""Implement SuperPoint with batch norms for training, and convert it to a plain SuperPoint."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selfmark.keypoints.superpoint import SuperPoint

ENCODER = ("conv1a", "conv1b", "conv2a", "conv2b", "conv3a", "conv3b", "conv4a", "conv4b")
POOL_BEFORE = ("conv2a", "conv3a", "conv4a")
LAYERS_WITH_NORM = (*ENCODER, "convPa", "convDa")
PATCH_SIZE = 16  # 9 pixels of a 3 x 3 patch and 7 zeros: GPUs are fastest if sizes are multiples of 8


class TrainingNetwork(nn.Module):
    """SuperPoint with a batch norm between each convolution and its ReLU.

    The norms allow a high learning rate. After training, `fold_norms` folds them into the convolutions.
    Convolutions before a norm have no bias, because the norm would cancel it. On a GPU, all activations are
    bfloat16 in the channels-last layout.
    """

    def __init__(self) -> None:
        """Initialize the weights for ReLU activations."""
        super().__init__()
        self.net = SuperPoint()
        self.norms = nn.ModuleDict(
            {name: nn.BatchNorm2d(getattr(self.net, name).out_channels) for name in LAYERS_WITH_NORM}
        )
        for name in LAYERS_WITH_NORM:
            convolution = getattr(self.net, name)
            nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
            convolution.bias.requires_grad_(False).zero_()
        for layer in self.net.children():  # GPUs convolve fastest in channels-last; activations inherit it
            assert isinstance(layer, nn.Conv2d)
            layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)

    def _apply_layer(self, name: str, x: Tensor) -> Tensor:
        weight = getattr(self.net, name).weight.to(x.dtype)
        convolved = convolve_patches(x, weight) if name == "conv1a" else F.conv2d(x, weight, padding=1)
        result: Tensor = self.norms[name](convolved)
        return result.relu_()

    def forward(self, gray: Tensor) -> tuple[Tensor, Tensor]:
        """Return cell logits [B, 65, H/8, W/8] and raw descriptors [B, 256, H/8, W/8].

        Args:
            gray: Gray images [B, 1, H, W] in 0..1.
        """
        x = gray.bfloat16() if gray.is_cuda else gray
        for name in ENCODER:
            x = self._apply_layer(name, F.max_pool2d(x, 2) if name in POOL_BEFORE else x)
        logits = _apply_output_layer(self.net.convPb, self._apply_layer("convPa", x))
        return logits, _apply_output_layer(self.net.convDb, self._apply_layer("convDa", x))


def _apply_output_layer(layer: nn.Conv2d, x: Tensor) -> Tensor:
    assert layer.bias is not None
    return F.conv2d(x, layer.weight.to(x.dtype), layer.bias.to(x.dtype)).float()


def convolve_patches(gray: Tensor, weight: Tensor) -> Tensor:
    """Convolve gray images [B, 1, H, W] with 3 x 3 kernels [C, 1, 3, 3] by matrix products.

    With `conv2d`, the gradient of a kernel with one input channel is slow, because most of the GPU is idle.
    One matrix product per image is fast. The result [B, C, H, W] has the channels-last memory layout.
    """
    count, _, height, width = gray.shape
    padded = F.pad(gray[:, 0], (1, 1, 1, 1))
    patches = gray.new_zeros(count, height, width, PATCH_SIZE)
    for index in range(9):
        row, column = divmod(index, 3)
        patches[..., index] = padded[:, row : row + height, column : column + width]
    kernels = F.pad(weight.flatten(1), (0, PATCH_SIZE - 9)).T.expand(count, -1, -1)
    result = torch.bmm(patches.reshape(count, height * width, PATCH_SIZE), kernels)
    return result.reshape(count, height, width, -1).permute(0, 3, 1, 2)


@torch.no_grad()
def fold_norms(network: TrainingNetwork) -> dict[str, Tensor]:
    """Return the state dict of a `SuperPoint` with the same outputs as `network` in evaluation mode."""
    state = {name: tensor.detach().double() for name, tensor in network.net.state_dict().items()}
    for name in LAYERS_WITH_NORM:
        norm = network.norms[name]
        assert isinstance(norm, nn.BatchNorm2d)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        factor = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
        state[f"{name}.weight"] *= factor[:, None, None, None]
        state[f"{name}.bias"] = norm.bias.double() - norm.running_mean.double() * factor
    return {name: tensor.float().cpu().contiguous() for name, tensor in state.items()}


def build_superpoint(state: dict[str, Tensor], device: torch.device) -> SuperPoint:
    """Build a `SuperPoint` for inference from the state dict of `fold_norms`."""
    network = SuperPoint()
    network.load_state_dict(state)
    network.eval().requires_grad_(False)
    for parameter in network.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return network.to(device)
