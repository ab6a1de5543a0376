"""RMSprop over parameters stored in a few long vectors, so that an update takes only a handful of launches.

The update rule is that of torch.optim.RMSprop, after averaging the gradient over processes and clipping its
norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from selfmark.config import Optimizer
from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup

_ALPHA = 0.99  # decay of the mean square; torch's default
_EPS = 1e-8  # torch's default


@dataclass(frozen=True)
class _FlatGroup:
    """Parameters with the same learning rate and precision, concatenated in vectors [n].

    parameters: views into `value`
    leaves:     tensors that collect the gradients: the parameters, or views into `copy`
    value:      float32 values
    square:     mean square of the gradient
    copy:       low-precision values, or None
    lr_scale:   factor on the learning rate
    """

    parameters: tuple[nn.Parameter, ...]
    leaves: tuple[Tensor, ...]
    value: Tensor
    square: Tensor
    copy: Tensor | None
    lr_scale: float


class FlatRMSprop:
    """RMSprop for parts of a network, each with a factor on the learning rate."""

    def __init__(
        self,
        lr_scales: Sequence[tuple[nn.Module, float]],
        settings: Optimizer,
        copy_dtype: torch.dtype | None = None,
    ) -> None:
        """Turn the parameters into views of long vectors.

        Args:
            lr_scales: parts of the network and the factor on the learning rate of each.
            settings: learning rate, weight decay, clipping.
            copy_dtype: if given, convolutions read copies of this type; see `weight_copies`.
        """
        self.settings = settings
        self._factor = 1.0
        self._groups = [
            group for part, lr_scale in lr_scales for group in _flatten_part(part, lr_scale, copy_dtype)
        ]
        self._rate = torch.full((), settings.lr, device=self._groups[0].value.device)

    @property
    def weight_copies(self) -> dict[Tensor, Tensor]:
        """Low-precision copy of each parameter that has one; `step` reads the gradient of the copy."""
        with_copy = [group for group in self._groups if group.copy is not None]
        return {
            p: leaf for group in with_copy for p, leaf in zip(group.parameters, group.leaves, strict=True)
        }

    @property
    def learning_rates(self) -> list[float]:
        """Current learning rate of each part."""
        rates = {group.lr_scale: self.settings.lr * self._factor * group.lr_scale for group in self._groups}
        return list(rates.values())

    def scale_learning_rate(self, factor: float) -> None:
        """Set the learning rate to `factor` times that of the settings."""
        if factor != self._factor:
            self._factor = factor
            self._rate.fill_(self.settings.lr * factor)

    def zero_grad(self) -> None:
        """Delete all gradients."""
        for group in self._groups:
            for leaf in group.leaves:
                leaf.grad = None

    @torch.no_grad()
    def step(self, processes: ProcessGroup = SINGLE_PROCESS) -> None:
        """Update the parameters by their gradients, averaged over the processes."""
        gradients = [_flat_gradient(group) for group in self._groups]
        if processes.size > 1:
            gradients = [processes.all_sum(gradient).div_(processes.size) for gradient in gradients]
        if self.settings.clip_norm > 0:
            norm = torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients]).norm()
            scale = (self.settings.clip_norm / (norm + 1e-6)).clamp_max(1.0)
            for gradient in gradients:
                gradient.mul_(scale)
        for group, gradient in zip(self._groups, gradients, strict=True):
            gradient.add_(group.value, alpha=self.settings.weight_decay)
            group.square.mul_(_ALPHA).addcmul_(gradient, gradient, value=1 - _ALPHA)
            step = gradient.div_(group.square.sqrt().add_(_EPS)).mul_(self._rate * group.lr_scale)
            group.value.sub_(step)
        self.update_copies()

    @torch.no_grad()
    def update_copies(self) -> None:
        """Copy the parameters to their low-precision copies."""
        for group in self._groups:
            if group.copy is not None:
                group.copy.copy_(group.value)

    def mean_squares(self, network: nn.Module) -> dict[str, Tensor]:
        """Return the mean squared gradients by parameter name, as views in the shape of the parameter."""
        names = {parameter: name for name, parameter in network.named_parameters()}
        return {
            names[parameter]: view
            for group in self._groups
            for parameter, view in zip(
                group.parameters, _split_views(group.square, group.parameters), strict=True
            )
        }


def _flatten_part(part: nn.Module, lr_scale: float, copy_dtype: torch.dtype | None) -> list[_FlatGroup]:
    if copy_dtype is None:
        return [_flatten(list(part.parameters()), lr_scale, None)]
    convs = [p for m in part.modules() if isinstance(m, nn.Conv2d) for p in m.parameters()]
    # Weights before biases and large before small, so that each weight starts at a 16-byte boundary, which
    # cudnn's fast kernels need.
    convs.sort(key=lambda p: (-p.ndim, -p.numel()))
    in_convs = set(convs)
    others = [p for p in part.parameters() if p not in in_convs]
    return [_flatten(convs, lr_scale, copy_dtype), _flatten(others, lr_scale, None)]


def _flatten(parameters: list[nn.Parameter], lr_scale: float, copy_dtype: torch.dtype | None) -> _FlatGroup:
    value = torch.cat([_in_memory_order(p.detach(), p) for p in parameters])
    copy = None if copy_dtype is None else value.to(copy_dtype)
    leaves: list[Tensor] = list(parameters)
    if copy is not None:
        leaves = [view.detach().requires_grad_() for view in _split_views(copy, parameters)]
    for parameter, view in zip(parameters, _split_views(value, parameters), strict=True):
        parameter.data = view
    return _FlatGroup(tuple(parameters), tuple(leaves), value, torch.zeros_like(value), copy, lr_scale)


def _flat_gradient(group: _FlatGroup) -> Tensor:
    """Return the concatenated gradients as a new float32 vector, zero where there is no gradient."""
    pairs = zip(group.leaves, group.parameters, strict=True)
    parts = [
        torch.zeros_like(_in_memory_order(leaf, parameter))
        if leaf.grad is None
        else _in_memory_order(leaf.grad, parameter)
        for leaf, parameter in pairs
    ]
    return torch.cat(parts).float()


def _is_channels_last(like: Tensor) -> bool:
    return like.ndim == 4 and like.is_contiguous(memory_format=torch.channels_last)


def _in_memory_order(values: Tensor, like: Tensor) -> Tensor:
    """Flatten values in the order in which `like` is stored in memory."""
    return (values.permute(0, 2, 3, 1) if _is_channels_last(like) else values).reshape(-1)


def _split_views(vector: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Split a vector into views, each with the shape and memory order of its parameter."""
    views = []
    for piece, like in zip(torch.split(vector, [p.numel() for p in parameters]), parameters, strict=True):
        if _is_channels_last(like):
            outputs, inputs, height, width = like.shape
            views.append(piece.view(outputs, height, width, inputs).permute(0, 3, 1, 2))
        else:
            views.append(piece.view(like.shape))
    return views
