"""RMSprop over parameters that lie in a few long vectors, so that an update is a handful of launches.

The rule is torch.optim.RMSprop's, after the gradient has been averaged over processes and its norm clipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from selfmark.config import Optimizer
from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup

_ALPHA = 0.99  # memory of the mean square; torch's default
_EPS = 1e-8  # torch's default


@dataclass(frozen=True)
class _Stretch:
    """Parameters that share a learning rate and a precision, one after the other in vectors [n].

    parameters: they are views into `value`
    leaves:     what collects their gradients: the parameters, or views into `copy`
    value:      float32; square: mean square of the gradient; copy: low-precision values, or None
    share:      of the learning rate
    """

    parameters: tuple[nn.Parameter, ...]
    leaves: tuple[Tensor, ...]
    value: Tensor
    square: Tensor
    copy: Tensor | None
    share: float


class FlatRMSprop:
    """RMSprop for parts of a network, each at its share of the learning rate."""

    def __init__(
        self,
        shares: Sequence[tuple[nn.Module, float]],
        settings: Optimizer,
        copy_dtype: torch.dtype | None = None,
    ) -> None:
        """The parameters become views of long vectors.

        Args:
            shares: parts of the network and the share of the learning rate each learns at.
            settings: learning rate, weight decay, clipping.
            copy_dtype: if given, convolutions read copies of this precision, see `copies`.
        """
        self.settings = settings
        self._factor = 1.0
        self._stretches = [
            stretch for part, share in shares for stretch in _stretches_of(part, share, copy_dtype)
        ]
        self._rate = torch.full((), settings.lr, device=self._stretches[0].value.device)

    @property
    def copies(self) -> dict[Tensor, Tensor]:
        """The low-precision copy of each parameter that has one. Gradients must reach the copy."""
        low = [stretch for stretch in self._stretches if stretch.copy is not None]
        return {p: leaf for s in low for p, leaf in zip(s.parameters, s.leaves, strict=True)}

    @property
    def rates(self) -> list[float]:
        """The learning rate of each part now."""
        found = {
            stretch.share: self.settings.lr * self._factor * stretch.share for stretch in self._stretches
        }
        return list(found.values())

    def scale_rate(self, factor: float) -> None:
        """Learn at `factor` times the settings' learning rate from now on."""
        if factor != self._factor:
            self._factor = factor
            self._rate.fill_(self.settings.lr * factor)

    def zero_grad(self) -> None:
        for stretch in self._stretches:
            for leaf in stretch.leaves:
                leaf.grad = None

    @torch.no_grad()
    def step(self, group: ProcessGroup = SINGLE_PROCESS) -> None:
        """Update by the gradients that the backward pass left; they are averaged over the group."""
        gradients = [_gradient(stretch) for stretch in self._stretches]
        if group.size > 1:
            gradients = [group.all_sum(gradient).div_(group.size) for gradient in gradients]
        if self.settings.clip_norm > 0:
            norm = torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients]).norm()
            scale = (self.settings.clip_norm / (norm + 1e-6)).clamp_max(1.0)
            for gradient in gradients:
                gradient.mul_(scale)
        for stretch, gradient in zip(self._stretches, gradients, strict=True):
            gradient.add_(stretch.value, alpha=self.settings.weight_decay)
            stretch.square.mul_(_ALPHA).addcmul_(gradient, gradient, value=1 - _ALPHA)
            step = gradient.div_(stretch.square.sqrt().add_(_EPS)).mul_(self._rate * stretch.share)
            stretch.value.sub_(step)
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Bring the low-precision copies in line with the parameters."""
        for stretch in self._stretches:
            if stretch.copy is not None:
                stretch.copy.copy_(stretch.value)

    def squares(self, network: nn.Module) -> dict[str, Tensor]:
        """The mean squares by the names of the parameters, each a view of the parameter's shape."""
        names = {parameter: name for name, parameter in network.named_parameters()}
        return {
            names[parameter]: view
            for stretch in self._stretches
            for parameter, view in zip(
                stretch.parameters, _views(stretch.square, stretch.parameters), strict=True
            )
        }


def _stretches_of(part: nn.Module, share: float, copy_dtype: torch.dtype | None) -> list[_Stretch]:
    if copy_dtype is None:
        return [_stretch(list(part.parameters()), share, None)]
    convs = [p for m in part.modules() if isinstance(m, nn.Conv2d) for p in m.parameters()]
    # Weights before biases, large before small, so that each weight starts on a 16-byte boundary: cudnn's
    # fast kernels need that.
    convs.sort(key=lambda p: (-p.ndim, -p.numel()))
    those = set(convs)
    others = [p for p in part.parameters() if p not in those]
    return [_stretch(convs, share, copy_dtype), _stretch(others, share, None)]


def _stretch(parameters: list[nn.Parameter], share: float, copy_dtype: torch.dtype | None) -> _Stretch:
    value = torch.cat([_in_memory_order(p.detach(), p) for p in parameters])
    copy = None if copy_dtype is None else value.to(copy_dtype)
    leaves: list[Tensor] = list(parameters)
    if copy is not None:
        leaves = [view.detach().requires_grad_() for view in _views(copy, parameters)]
    for parameter, view in zip(parameters, _views(value, parameters), strict=True):
        parameter.data = view
    return _Stretch(tuple(parameters), tuple(leaves), value, torch.zeros_like(value), copy, share)


def _gradient(stretch: _Stretch) -> Tensor:
    """The gradients, one after the other, float32 and owned; nothing came for a parameter: zeros."""
    pairs = zip(stretch.leaves, stretch.parameters, strict=True)
    parts = [
        torch.zeros_like(_in_memory_order(leaf, parameter))
        if leaf.grad is None
        else _in_memory_order(leaf.grad, parameter)
        for leaf, parameter in pairs
    ]
    return torch.cat(parts).float()


def _channels_last(like: Tensor) -> bool:
    return like.ndim == 4 and like.is_contiguous(memory_format=torch.channels_last)


def _in_memory_order(values: Tensor, like: Tensor) -> Tensor:
    """Flat, in the order in which `like` lies in memory."""
    return (values.permute(0, 2, 3, 1) if _channels_last(like) else values).reshape(-1)


def _views(vector: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Pieces of a vector, each in the shape and memory order of its parameter."""
    views = []
    for piece, like in zip(torch.split(vector, [p.numel() for p in parameters]), parameters, strict=True):
        if _channels_last(like):
            outputs, inputs, height, width = like.shape
            views.append(piece.view(outputs, height, width, inputs).permute(0, 3, 1, 2))
        else:
            views.append(piece.view(like.shape))
    return views
