"""Features of a user's own ONNX model, computed with ONNX Runtime.

The model has one float32 input [B, 3, H, W] and one float32 output [B, D, h, w]. The input is RGB in 0..1,
normalized with the mean and the standard deviation of ImageNet's colors. Dimensions may be fixed or dynamic.
If H and W are fixed, images are resized. If B is fixed, images are divided into batches of this size.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from selfmark.errors import InputError, UnsafeFile
from selfmark.features.encoder import Encoder, FeatureInfo
from selfmark.features.imagenet_colors import ColorNormalizer
from selfmark.run.guarded_files import physical_memory, read_bytes

PREFIX = "onnx:"
_PROBE_SIZE = 256  # pixels; side of the image with which the channels of the output are counted
_FLOAT = "tensor(float)"
_PROVIDERS = ("CUDAExecutionProvider", "CPUExecutionProvider")

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
            "that of the ONNX model, which selfmark does not know",
            "unknown, see the ONNX model's origin",
        )
        self.normalize = ColorNormalizer()
        self.model_bytes = model_bytes
        self._session = _open_session(name, model_bytes)
        shape = self._check_interface()
        self._input = self._session.get_inputs()[0].name
        self._batch = _fixed_size(shape[0])
        self._size = (_fixed_size(shape[2]), _fixed_size(shape[3]))
        self.channels = self.part_channels = self._count_channels()
        self.eval()

    def compute_maps(self, images: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return the output of the model for images [B, 3, S, S] in 0..1, without gradients."""
        height, width = (fixed or side for fixed, side in zip(self._size, images.shape[2:], strict=True))
        images = images.detach().float()
        if images.shape[2:] != (height, width):
            images = F.interpolate(
                images, (height, width), mode="bilinear", align_corners=False, antialias=True
            )
        values = self._run(self.normalize(images).cpu().numpy())
        maps = [torch.from_numpy(values).to(images.device)]
        return maps, maps

    def _run(self, images: Floats) -> Floats:
        """Run the model in batches of its fixed size; copies of the last image fill up the last batch."""
        count = len(images)
        batch = self._batch or count
        images = np.concatenate([images, np.repeat(images[-1:], -count % batch, axis=0)])
        outputs = [self._run_batch(images[start : start + batch]) for start in range(0, count, batch)]
        return np.concatenate(outputs)[:count]

    def _run_batch(self, images: Floats) -> Floats:
        try:
            (output,) = self._session.run(None, {self._input: np.ascontiguousarray(images)})
        except Exception as error:  # ONNX Runtime's own exceptions have no public base class
            height, width = images.shape[2:]
            raise InputError(
                f"the model of {self.info.name} fails on images of {height} x {width} pixels "
                f"({_first_line(error)}); export it for this size"
            ) from error
        if output.ndim != 4 or len(output) != len(images):
            raise self._wrong_output(f"shape {list(output.shape)} for {len(images)} images")
        if not np.isfinite(output).all():
            raise self._wrong_output("values that are not finite")
        values: Floats = output
        return values

    def _check_interface(self) -> list[Any]:
        """Raise an InputError unless there is one suitable input and output; return the input's shape."""
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        if len(inputs) != 1 or len(outputs) != 1:
            raise InputError(
                f"the model of {self.info.name} has {len(inputs)} inputs and {len(outputs)} outputs; "
                "features need a model with one input [B, 3, H, W] and one output [B, D, h, w]"
            )
        shape: list[Any] = inputs[0].shape
        if inputs[0].type != _FLOAT or len(shape) != 4 or _fixed_size(shape[1]) not in (3, None):
            raise InputError(
                f"the input of {self.info.name} is {inputs[0].type} with shape {shape}; features need a "
                "model with a float32 input [B, 3, H, W]"
            )
        # The declared shape of the output is empty if it is unknown. `_run_batch` then checks the results.
        if outputs[0].type != _FLOAT or len(outputs[0].shape) not in (0, 4):
            raise self._wrong_output(f"{outputs[0].type} with shape {outputs[0].shape}")
        return shape

    def _count_channels(self) -> int:
        """Return D from the declared shape of the output, or if it is dynamic, from a run on one image."""
        shape = self._session.get_outputs()[0].shape
        if len(shape) == 4 and (declared := _fixed_size(shape[1])):
            return declared
        height, width = (fixed or _PROBE_SIZE for fixed in self._size)
        output = self._run(np.zeros((1, 3, height, width), np.float32))
        return int(output.shape[1])

    def _wrong_output(self, found: str) -> InputError:
        return InputError(
            f"the output of {self.info.name} is {found}; features need a model with one float32 output "
            "[B, D, h, w] of finite values"
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


def _open_session(name: str, model_bytes: bytes) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise InputError(
            f"the features '{name}' need the package onnxruntime, which is not installed: "
            "pip install 'selfmark[onnx]'"
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors only: warnings about the graph do not concern the user
    available = onnxruntime.get_available_providers()
    providers = [provider for provider in _PROVIDERS if provider in available]
    try:
        return onnxruntime.InferenceSession(model_bytes, options, providers=providers)
    except Exception as error:  # ONNX Runtime's own exceptions have no public base class
        raise InputError(
            f"'{name.removeprefix(PREFIX)}' is not an ONNX model that ONNX Runtime can read: "
            f"{_first_line(error)}"
        ) from error


def _fixed_size(dimension: Any) -> int | None:
    """Return the size of a dimension, or None if it is dynamic."""
    return dimension if isinstance(dimension, int) and dimension > 0 else None


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
