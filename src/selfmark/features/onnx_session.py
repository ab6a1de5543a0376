"""Run ONNX models from strangers: check their graph, limit their memory, and keep ONNX Runtime quiet.

A graph may contain any operators. Some could run without end, read other files, or use memory that
`MAX_MEMORY` does not cover. A model with one of these is refused before ONNX Runtime sees it. Everything else
is limited by the memory that ONNX Runtime may allocate. The time of a graph without loops is not limited.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from selfmark.errors import InputError, require_package

if TYPE_CHECKING:
    import onnx

INSTALL = "onnx onnxruntime"
"""Names of the packages for pip."""

MAX_MEMORY = max(4 << 30, (256 << 20) * (os.cpu_count() or 1))
"""Bytes that all sessions of this process may allocate on the CPU, without the weights.

An image of 192 x 192 pixels takes our own networks less than 30 MB, and every core processes one image at a
time. A pass of a large published model over 64 images of 256 x 256 pixels takes up to 3 GB.
"""

# Domains of the operators of ONNX, and of the operators of ONNX Runtime that its optimized files contain. The
# operators of other domains do not compute features: decision trees, tables of strings, training.
_DOMAINS = ("", "ai.onnx", "com.microsoft")
# Operators that allocate memory in proportion to an attribute. `MAX_MEMORY` does not cover this memory.
_UNLIMITED_OPERATORS = ("RoiAlign",)
_MAX_NAME = 60  # characters of an operator's name in messages

Outputs = list[npt.NDArray[np.float32]]


def parse_model(content: bytes) -> onnx.ModelProto:
    """Parse a serialized ONNX model.

    Raises:
        ValueError: if the content is not an ONNX model.
        InputError: if the package onnx is not installed.
    """
    package: Any = require_package("onnx", INSTALL)
    try:
        model: onnx.ModelProto = package.load_from_string(content)
    except Exception as error:  # the errors of onnx have no common base class
        raise ValueError(first_line(error)) from error
    return model


def check_graph(model: onnx.ModelProto, source: str, remedy: str) -> None:
    """Raise unless the graph can be run safely.

    It must not contain loops, functions, weights in other files, sparse tensors, strings, any of
    `_UNLIMITED_OPERATORS`, or operators of domains that are not in `_DOMAINS`. Every operator that contains a
    graph counts as a loop, except If.

    Args:
        model: the model.
        source: the file, as in "'own.onnx'", for the message.
        remedy: what the user can do, for the message.

    Raises:
        InputError: if the graph contains one of these.
    """
    problem = next(_find_problems(model), None)
    if problem is not None:
        raise InputError(f"{source} has {problem}, which selfmark does not run: {remedy}")


def _find_problems(model: onnx.ModelProto) -> Iterator[str]:
    for function in model.functions:  # Nested functions can expand a small file to a graph of any size.
        yield f"the function '{function.name:.{_MAX_NAME}}'"
    yield from _find_graph_problems(model.graph)


def _find_graph_problems(graph: onnx.GraphProto) -> Iterator[str]:
    if graph.sparse_initializer:
        yield "sparse tensors"
    for tensor in graph.initializer:
        yield from _find_tensor_problems(tensor)
    for node in graph.node:
        yield from _find_node_problems(node)


def _find_node_problems(node: onnx.NodeProto) -> Iterator[str]:
    from onnx import TensorProto

    operator = f"the operator {node.op_type:.{_MAX_NAME}}"
    if node.domain not in _DOMAINS:
        yield f"{operator} of the domain '{node.domain:.{_MAX_NAME}}'"
    if node.op_type in _UNLIMITED_OPERATORS:
        yield operator
    for attribute in node.attribute:
        for branch in [attribute.g] if attribute.HasField("g") else attribute.graphs:
            if node.op_type != "If":
                yield f"a loop ({operator})"
            yield from _find_graph_problems(branch)
        if attribute.HasField("sparse_tensor") or attribute.sparse_tensors:
            yield "sparse tensors"
        is_string_type = attribute.name == "to" and attribute.i == TensorProto.STRING
        if is_string_type or attribute.name in ("value_string", "value_strings"):
            yield "strings"
        for tensor in (attribute.t, *attribute.tensors):
            yield from _find_tensor_problems(tensor)


def _find_tensor_problems(tensor: onnx.TensorProto) -> Iterator[str]:
    from onnx import TensorProto

    if tensor.data_location == TensorProto.EXTERNAL or tensor.external_data:
        yield "weights in another file"
    if tensor.data_type == TensorProto.STRING:
        yield "strings"


class OnnxSession:
    """A model in ONNX Runtime, which may allocate at most `MAX_MEMORY` bytes on the CPU.

    Messages of ONNX Runtime are not printed: its errors are raised anyway, and names of nodes in its messages
    could contain codes that control the terminal.

    Args:
        content: serialized model that `check_graph` accepts.
        threads: number of threads of one operator.
        providers: names of execution providers, best first. If they fail together, the last is used alone.

    Raises:
        ValueError: if ONNX Runtime cannot read the model; the message is one line.
        InputError: if the package onnxruntime is not installed.
    """

    def __init__(
        self, content: bytes, threads: int, providers: Sequence[str] = ("CPUExecutionProvider",)
    ) -> None:
        runtime = require_package("onnxruntime", INSTALL)
        _limit_memory(runtime)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = _ONLY_FATAL
        # Read the format that was checked, not ONNX Runtime's own format.
        options.add_session_config_entry("session.load_model_format", "ONNX")
        options.add_session_config_entry("session.use_env_allocators", "1")  # see `_limit_memory`
        # The size of the file already limits the memory of the weights.
        options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
        available = runtime.get_available_providers()
        names = [name for name in providers if name in available]
        try:
            try:
                self._session = _create_session(runtime, content, options, names)
            except Exception:
                if len(names) < 2:
                    raise
                self._session = _create_session(runtime, content, options, names[-1:])
        except Exception as error:  # the errors of ONNX Runtime have no common base class
            raise ValueError(first_line(error)) from error
        self._run_options = runtime.RunOptions()
        self._run_options.log_severity_level = _ONLY_FATAL
        self.inputs: list[Any] = self._session.get_inputs()
        self.outputs: list[Any] = self._session.get_outputs()

    def run(self, feed: Mapping[str, npt.NDArray[np.float32]], names: Sequence[str] | None = None) -> Outputs:
        """Run the model and return the outputs with these names; None returns all outputs.

        Raises:
            ValueError: if ONNX Runtime fails, for example because `MAX_MEMORY` is too little; the message is
                one line.
        """
        try:
            outputs: Outputs = self._session.run(names, feed, self._run_options)
        except Exception as error:  # the errors of ONNX Runtime have no common base class
            raise ValueError(first_line(error)) from error
        if not all(isinstance(output, np.ndarray) for output in outputs):
            raise ValueError("an output is not a tensor")
        return outputs


_ONLY_FATAL = 4  # severity level: only messages about fatal errors are printed


def _create_session(runtime: Any, content: bytes, options: Any, providers: list[str]) -> Any:
    # ONNX Runtime's own way to fall back to another provider prints to the terminal.
    return runtime.InferenceSession(content, options, providers=providers, enable_fallback=0)


@cache
def _limit_memory(runtime: Any) -> None:
    """Register an allocator with the limit `MAX_MEMORY`, which all our sessions of this process share."""
    with suppress(Exception):  # A program that uses selfmark may have registered an allocator itself.
        memory = runtime.OrtMemoryInfo(
            "Cpu", runtime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, runtime.OrtMemType.DEFAULT
        )
        runtime.create_and_register_allocator(memory, runtime.OrtArenaCfg({"max_mem": MAX_MEMORY}))


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or the error's type if there is no message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
