"""Optimize parameters stored in a few long vectors, so that an update launches only a few kernels.

The gradient is first averaged over the processes. For RMSprop, it is also clipped by its norm if
`optimizer.clip_norm` is above 0. Then the update rules of torch.optim.RMSprop and torch.optim.AdamW apply.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from selfmark.config import Optimizer
from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup

_ALPHA = 0.99  # decay of RMSprop's mean square; torch's default
_BETAS = (0.9, 0.999)  # decay of AdamW's mean and mean square; torch's default
_EPS = 1e-8  # torch's default for both optimizers


@dataclass(frozen=True)
class FlatGroup:
    """Parameters with the same learning rate and precision, concatenated in vectors [n].

    parameters: views into `value`
    leaves:     tensors that receive the gradients: views into `copy` if there is one, else the parameters
    value:      float32 values
    moments:    mapping from names to running means: of the squared gradient and, for AdamW, of the gradient
    copy:       low-precision values that convolutions read, or None
    lr_scale:   factor on the learning rate
    """

    parameters: tuple[nn.Parameter, ...]
    leaves: tuple[Tensor, ...]
    value: Tensor
    moments: dict[str, Tensor]
    copy: Tensor | None
    lr_scale: float


class FlatOptimizer(ABC):
    """Optimizer of parts of a network, each with a factor on the learning rate."""

    remedy: str  # what to do if the training diverges, for error messages
    _moments: tuple[str, ...]  # names of the running means that the update rule needs

    def __init__(
        self,
        lr_scales: Sequence[tuple[nn.Module, float]],
        lr: float,
        copy_dtype: torch.dtype | None = None,
    ) -> None:
        """Turn the parameters into views of long vectors.

        Args:
            lr_scales: parts of the network and the factor on the learning rate of each.
            lr: learning rate.
            copy_dtype: type of the copies that convolutions read, see `weight_copies`; None for no copies.
        """
        self._lr = lr
        self._factor = 1.0
        self._groups = [
            group
            for part, lr_scale in lr_scales
            for group in _flatten_part(part, lr_scale, copy_dtype, self._moments)
        ]
        self._rate = torch.full((), lr, device=self._groups[0].value.device)

    @property
    def weight_copies(self) -> dict[Tensor, Tensor]:
        """Return the low-precision copy of each parameter that has one; `step` reads the copy's gradient."""
        with_copy = [group for group in self._groups if group.copy is not None]
        return {
            p: leaf for group in with_copy for p, leaf in zip(group.parameters, group.leaves, strict=True)
        }

    @property
    def learning_rates(self) -> list[float]:
        """Return the current learning rates of the parts; parts with the same factor count once."""
        rates = {group.lr_scale: self._lr * self._factor * group.lr_scale for group in self._groups}
        return list(rates.values())

    def scale_learning_rate(self, factor: float) -> None:
        """Set the learning rate to `factor` times the initial learning rate."""
        if factor != self._factor:
            self._factor = factor
            self._rate.fill_(self._lr * factor)

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
        self._update(gradients)
        self.update_copies()

    @abstractmethod
    def _update(self, gradients: list[Tensor]) -> None:
        """Update the values of all groups by their gradients; the gradients may be overwritten."""

    @torch.no_grad()
    def update_copies(self) -> None:
        """Copy the parameters to their low-precision copies."""
        for group in self._groups:
            if group.copy is not None:
                group.copy.copy_(group.value)

    def state_tensors(self, network: nn.Module) -> dict[str, Tensor]:
        """Return a mapping from names to the tensors that a checkpoint needs.

        Writing to these tensors changes the state of the optimizer.
        """
        return self._moment_views(network, self._moments[0], "")

    def _moment_views(self, network: nn.Module, moment: str, suffix: str) -> dict[str, Tensor]:
        """Return a mapping from parameter names to views of a running mean in the parameters' shapes."""
        names = {parameter: name for name, parameter in network.named_parameters()}
        return {
            names[parameter] + suffix: view
            for group in self._groups
            for parameter, view in zip(
                group.parameters, _split_views(group.moments[moment], group.parameters), strict=True
            )
        }


class FlatRMSprop(FlatOptimizer):
    """RMSprop, the paper's optimizer (Sec. 4.2, Training)."""

    remedy = (
        "resume with a lower optimizer.lr or with gradient clipping, for example --resume --set "
        "optimizer.clip_norm=1"
    )
    _moments = ("square",)

    def __init__(
        self,
        lr_scales: Sequence[tuple[nn.Module, float]],
        settings: Optimizer,
        copy_dtype: torch.dtype | None = None,
    ) -> None:
        """Create the optimizer with learning rate, weight decay and clipping of the settings."""
        super().__init__(lr_scales, settings.lr, copy_dtype)
        self.settings = settings

    def _update(self, gradients: list[Tensor]) -> None:
        if self.settings.clip_norm > 0:
            norm = torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients]).norm()
            scale = (self.settings.clip_norm / (norm + 1e-6)).clamp_max(1.0)
            for gradient in gradients:
                gradient.mul_(scale)
        for group, gradient in zip(self._groups, gradients, strict=True):
            square = group.moments["square"]
            gradient.add_(group.value, alpha=self.settings.weight_decay)
            square.mul_(_ALPHA).addcmul_(gradient, gradient, value=1 - _ALPHA)
            step = gradient.div_(square.sqrt().add_(_EPS)).mul_(self._rate * group.lr_scale)
            group.value.sub_(step)


class FlatAdamW(FlatOptimizer):
    """AdamW: Adam with decoupled weight decay, a common choice to fine-tune pretrained networks."""

    remedy = "resume with a lower learning rate, for example --resume --set student.lr=1e-4"
    _moments = ("mean", "square")

    def __init__(
        self,
        lr_scales: Sequence[tuple[nn.Module, float]],
        lr: float,
        weight_decay: float,
        copy_dtype: torch.dtype | None = None,
    ) -> None:
        """Create the optimizer with decoupled `weight_decay`; see `FlatOptimizer` for the other arguments."""
        super().__init__(lr_scales, lr, copy_dtype)
        self._weight_decay = weight_decay
        self._steps = torch.zeros((), device=self._groups[0].value.device)

    def _update(self, gradients: list[Tensor]) -> None:
        self._steps.add_(1)
        mean_decay, square_decay = _BETAS
        mean_scale, square_scale = (1 / (1 - decay**self._steps) for decay in _BETAS)
        for group, gradient in zip(self._groups, gradients, strict=True):
            rate = self._rate * group.lr_scale
            mean, square = group.moments["mean"], group.moments["square"]
            mean.lerp_(gradient, 1 - mean_decay)
            square.mul_(square_decay).addcmul_(gradient, gradient, value=1 - square_decay)
            group.value.mul_(1 - rate * self._weight_decay)
            step = (mean * mean_scale).div_((square * square_scale).sqrt_().add_(_EPS)).mul_(rate)
            group.value.sub_(step)

    def state_tensors(self, network: nn.Module) -> dict[str, Tensor]:
        """Return both running means and the number of steps."""
        views = {"steps": self._steps}
        for moment in self._moments:
            views |= self._moment_views(network, moment, f".{moment}")
        return views


def _flatten_part(
    part: nn.Module, lr_scale: float, copy_dtype: torch.dtype | None, moments: tuple[str, ...]
) -> list[FlatGroup]:
    """Concatenate the parameters of a part; with copies, convolutions form a group of their own."""
    if copy_dtype is None:
        return [_flatten(list(part.parameters()), lr_scale, None, moments)]
    conv_parameters = [p for m in part.modules() if isinstance(m, nn.Conv2d) for p in m.parameters()]
    # cudnn's fast kernels need each weight at a 16-byte boundary, i.e. at a multiple of 8 values of 2 bytes.
    # Large weights have a multiple of 8 values, so they come first and keep the next weight at a boundary.
    # Small weights and biases may have any number of values, so they come last.
    conv_parameters.sort(key=lambda p: (-p.ndim, -p.numel()))
    in_convs = set(conv_parameters)
    other_parameters = [p for p in part.parameters() if p not in in_convs]
    parts = [(conv_parameters, copy_dtype), (other_parameters, None)]
    return [_flatten(parameters, lr_scale, dtype, moments) for parameters, dtype in parts if parameters]


def _flatten(
    parameters: list[nn.Parameter],
    lr_scale: float,
    copy_dtype: torch.dtype | None,
    moments: tuple[str, ...],
) -> FlatGroup:
    """Concatenate parameters and make them views of the new vector."""
    value = torch.cat([_in_memory_order(p.detach(), p) for p in parameters])
    copy = None if copy_dtype is None else value.to(copy_dtype)
    leaves: list[Tensor] = list(parameters)
    if copy is not None:
        leaves = [view.detach().requires_grad_() for view in _split_views(copy, parameters)]
    for parameter, view in zip(parameters, _split_views(value, parameters), strict=True):
        parameter.data = view
    running = {name: torch.zeros_like(value) for name in moments}
    return FlatGroup(tuple(parameters), tuple(leaves), value, running, copy, lr_scale)


def _flat_gradient(group: FlatGroup) -> Tensor:
    """Return the concatenated gradients as a new float32 vector, zero where there is no gradient."""
    pairs = zip(group.leaves, group.parameters, strict=True)
    parts = [
        torch.zeros_like(_in_memory_order(leaf, parameter))
        if leaf.grad is None
        else _in_memory_order(leaf.grad, parameter)
        for leaf, parameter in pairs
    ]
    return torch.cat(parts).float()


def _is_channels_last(tensor: Tensor) -> bool:
    return tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)


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
