"""Compute the features of a user's own ONNX model with ONNX Runtime.

The model has one float32 input [B, 3, H, W] and one float32 output [B, D, h, w]. The input is RGB in 0..1,
normalized with the mean and the standard deviation of ImageNet's colors. Dimensions may be fixed or dynamic.
If H and W are fixed, images are resized. If B is fixed, images are divided into batches of this size.

A model may come from a stranger, as a part of a detector. Therefore its graph, its declared shapes and every
result are checked, see also `onnx_session`.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from selfmark.errors import InputError, UnsafeFile
from selfmark.features.encoder import Encoder, FeatureInfo, grid_shape, resize_maps
from selfmark.features.imagenet_colors import ColorNormalizer
from selfmark.features.onnx_session import OnnxSession, check_graph, parse_model
from selfmark.run.guarded_files import physical_memory, read_bytes

PREFIX = "onnx:"
_PROBE_SIZE = 256  # pixels; side of the image with which the channels of the output are counted
_FLOAT = "tensor(float)"
_PROVIDERS = ("CUDAExecutionProvider", "CPUExecutionProvider")
_MAX_CHANNELS = 8192  # limit of D; large models have 1,536 channels per layer, and users may join layers
_MAX_INPUT_BYTES = 256 << 20  # bytes of one pass, for example 85 images of 512 x 512 pixels
_MAX_VALUE = 1e15  # larger values overflow when the vectors are normalized in float32
_LIMITS = f"1 to {_MAX_CHANNELS} channels, and no more cells than pixels"

Floats = npt.NDArray[np.float32]


class OnnxEncoder(Encoder):
    """Features of an ONNX model; `forward` and `describe` return the same features.

    Args:
        name: onnx:FILE, used in messages.
        model_bytes: content of the file.

    Attributes:
        model_bytes: content of the file, so that a detector can store a copy.

    Raises:
        InputError: if ONNX Runtime is not installed or the model's inputs or outputs are unsuitable.
    """

    is_trainable = False

    def __init__(self, name: str, model_bytes: bytes) -> None:
        super().__init__()
        self.info = FeatureInfo(
            name,
            "the license of the ONNX model, which selfmark does not know",
            "data that selfmark does not know; see where the ONNX model comes from",
        )
        self.normalize = ColorNormalizer()
        self.model_bytes = model_bytes
        self._session = _open_session(name, model_bytes)
        shape = self._check_interface()
        self._input = self._session.inputs[0].name
        self._batch = _fixed_size(shape[0])
        self._size = (_fixed_size(shape[2]), _fixed_size(shape[3]))
        self._check_input_size(shape)
        self._max_batch = self._batch  # None means any number of images
        self.channels = self.part_channels = 0  # not known yet
        self.channels = self.part_channels = self._count_channels()
        self.eval()

    def compute_maps(self, images: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return the output of the model for images [B, 3, S, S] in 0..1, without gradients.

        Maps of another resolution are resized to cells, so that many large maps need not be kept.
        """
        images, grid = images.detach().float(), grid_shape(images)
        height, width = (fixed or side for fixed, side in zip(self._size, images.shape[2:], strict=True))
        limit = max(1, _MAX_INPUT_BYTES // (3 * 4 * height * width))
        parts = [images.new_zeros(0, self.channels, *grid)]
        done = 0
        while done < len(images):
            batch = images[done : done + min(self._max_batch or limit, limit)]
            values = self._try_run(batch, (height, width))
            if values is None:  # Fewer images need less memory.
                self._max_batch = len(batch) // 2
                continue
            done += len(batch)
            parts.append(resize_maps(torch.from_numpy(values).to(images.device), grid))
        maps = [torch.cat(parts)]
        return maps, maps

    def _try_run(self, images: Tensor, size: tuple[int, int]) -> Floats | None:
        """Run the model on one batch resized to `size`; return None if smaller batches may succeed."""
        if images.shape[2:] != size:
            images = F.interpolate(images, size, mode="bilinear", align_corners=False, antialias=True)
        values = self.normalize(images).cpu().numpy()
        try:
            return self._run(values)
        except ValueError as error:
            if self._batch is None and len(values) > 1:
                return None
            raise InputError(
                f"the model of {self.info.name} fails on images of {size[0]} x {size[1]} pixels "
                f"({error}); export it for this size, or use a smaller model"
            ) from error

    def _run(self, images: Floats) -> Floats:
        """Run the model on one batch; copies of the last image fill up a batch of fixed size.

        Raises:
            ValueError: if ONNX Runtime fails.
            InputError: if the output is unsuitable.
        """
        count = len(images)
        if self._batch is not None:
            images = np.concatenate([images, np.repeat(images[-1:], self._batch - count, axis=0)])
        (output,) = self._session.run({self._input: np.ascontiguousarray(images)})
        self._check_output(output, images.shape)
        return output[:count]

    def _check_output(self, output: Floats, images: tuple[int, ...]) -> None:
        """Raise an InputError unless the output for images of this shape [B, 3, H, W] is suitable."""
        if output.ndim != 4 or len(output) != images[0] or output.dtype != np.float32:
            raise self._wrong_output(f"shape {list(output.shape)} for {images[0]} images")
        rows, columns = output.shape[2:]
        is_valid_map = 1 <= rows <= images[2] and 1 <= columns <= images[3]
        if not is_valid_map or not 1 <= output.shape[1] <= _MAX_CHANNELS:
            raise self._wrong_output(
                f"shape {list(output.shape)} for images of {images[2]} x {images[3]} pixels", _LIMITS
            )
        if self.channels not in (0, output.shape[1]):
            raise self._wrong_output(f"shape {list(output.shape)} instead of {self.channels} channels")
        low, high = output.min(), output.max()  # NaN if any value is NaN
        if not np.isfinite([low, high]).all():
            raise self._wrong_output("values that are not finite")
        if max(-low, high) > _MAX_VALUE:
            raise self._wrong_output(f"values up to {max(-low, high):.1e}", f"at most {_MAX_VALUE:.0e}")

    def _check_interface(self) -> list[Any]:
        """Raise an InputError unless there is one suitable input and output; return the input's shape."""
        inputs, outputs = self._session.inputs, self._session.outputs
        if len(inputs) != 1 or len(outputs) != 1:
            raise InputError(
                f"the model of {self.info.name} has {len(inputs)} inputs and {len(outputs)} outputs; "
                "features need a model with one input [B, 3, H, W] and one output [B, D, h, w]"
            )
        shape: list[Any] = inputs[0].shape
        if inputs[0].type != _FLOAT or len(shape) != 4 or _fixed_size(shape[1]) not in (3, None):
            raise InputError(
                f"the input of {self.info.name} has type {inputs[0].type} and shape {shape}; features need a "
                "model with a float32 input [B, 3, H, W]"
            )
        # The declared shape of the output is empty if it is unknown. `_check_output` then checks the results.
        if outputs[0].type != _FLOAT or len(outputs[0].shape) not in (0, 4):
            raise self._wrong_output(f"type {outputs[0].type} and shape {outputs[0].shape}")
        return shape

    def _check_input_size(self, shape: list[Any]) -> None:
        """Raise an InputError if the smallest batch that the fixed dimensions allow is too large."""
        batch, height, width = (_fixed_size(shape[axis]) or 1 for axis in (0, 2, 3))
        if 3 * 4 * batch * height * width > _MAX_INPUT_BYTES:
            raise InputError(
                f"the input of {self.info.name} has the shape {shape}, which is more than "
                f"{_MAX_INPUT_BYTES >> 20} MiB; export the model for smaller batches or smaller images"
            )

    def _count_channels(self) -> int:
        """Return D from the declared shape of the output, or if D is dynamic, from a run on one image.

        The declared D may be wrong, so every result is compared with it.
        """
        shape = self._session.outputs[0].shape
        if len(shape) == 4 and (declared_channels := _fixed_size(shape[1])):
            if declared_channels > _MAX_CHANNELS:
                raise self._wrong_output(f"the declared shape {shape}", _LIMITS)
            return declared_channels
        height, width = (fixed or _PROBE_SIZE for fixed in self._size)
        values = self._try_run(torch.zeros(1, 3, height, width), (height, width))
        assert values is not None  # one image cannot be divided further
        return int(values.shape[1])

    def _wrong_output(self, found: str, limits: str = "") -> InputError:
        return InputError(
            f"the output of {self.info.name} has {found}; features need a model with one float32 output "
            f"[B, D, h, w] of finite values{limits and f', {limits}'}"
        )


def read_onnx_model(name: str) -> bytes:
    """Return the content of the file of the features onnx:FILE.

    Raises:
        InputError: if the file does not exist or cannot be read.
    """
    path = Path(name.removeprefix(PREFIX))
    try:
        return read_bytes(path, physical_memory())
    except OSError as error:
        raise InputError(f"cannot read the ONNX model '{path}': {error.strerror}") from error
    except UnsafeFile as error:
        raise InputError(f"cannot read the ONNX model: {error}") from error


def _open_session(name: str, model_bytes: bytes) -> OnnxSession:
    file = f"'{name.removeprefix(PREFIX)}'"
    for package in ("onnx", "onnxruntime"):
        _require_package(name, package)
    try:
        check_graph(parse_model(model_bytes), file, "export the model without it")
        return OnnxSession(model_bytes, torch.get_num_threads(), _PROVIDERS)
    except ValueError as error:
        raise InputError(f"{file} is not an ONNX model that ONNX Runtime can read: {error}") from error


def _require_package(name: str, package: str) -> None:
    try:
        import_module(package)
    except ImportError as error:
        raise InputError(
            f"the features '{name}' need the package {package}, which is not installed: "
            "pip install 'selfmark[onnx]'"
        ) from error


def _fixed_size(dimension: Any) -> int | None:
    """Return the size of a dimension, or None if it is dynamic."""
    return dimension if isinstance(dimension, int) and dimension > 0 else None
