"""An ONNX graph while it is written: nodes, constants, and values that can be reckoned with.

>>> graph = Graph()
>>> half = Value(graph, "x") / 2.0
>>> [node.op_type for node in graph.nodes], half.name
(['Div'], 'Div_0_0')
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import onnx

# ONNX Runtime 1.12 and everything newer knows these, as do other runtimes that still keep up.
OPSET = 17
IR_VERSION = 8  # of the file format; the oldest that goes with OPSET


class Graph:
    """Nodes and constants so far. Values are known by their names."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(self, operator: str, *inputs: str | npt.NDArray[Any], **attributes: Any) -> str:
        """Append a node with one output and return the output's name; arrays become constants."""
        return self.add_several(operator, 1, *inputs, **attributes)[0]

    def add_several(
        self, operator: str, outputs: int, *inputs: str | npt.NDArray[Any], **attributes: Any
    ) -> list[str]:
        from onnx import helper

        name = f"{operator}_{len(self.nodes)}"
        results = [f"{name}_{index}" for index in range(outputs)]
        sources = [value if isinstance(value, str) else self._constant(value) for value in inputs]
        self.nodes.append(helper.make_node(operator, sources, results, name, **attributes))
        return results

    def call(self, value: Value, name: str) -> Value:
        """Give a value a name by which it can be asked for."""
        from onnx import helper

        self.nodes.append(helper.make_node("Identity", [value.name], [name]))
        return Value(self, name)

    def _constant(self, value: npt.NDArray[Any]) -> str:
        from onnx import numpy_helper

        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name


@dataclass(frozen=True)
class Value:
    """A value of the graph: arithmetic with it appends nodes, broadcasting as in NumPy."""

    graph: Graph
    name: str

    def then(self, operator: str, *others: Other, **attributes: Any) -> Value:
        """What an operator makes of this value, first, and others."""
        return Value(self.graph, self.graph.add(operator, self.name, *map(_operand, others), **attributes))

    def __add__(self, other: Other) -> Value:
        return self.then("Add", other)

    def __sub__(self, other: Other) -> Value:
        return self.then("Sub", other)

    def __mul__(self, other: Other) -> Value:
        return self.then("Mul", other)

    def __truediv__(self, other: Other) -> Value:
        return self.then("Div", other)

    def __matmul__(self, other: Value) -> Value:
        return self.then("MatMul", other)

    def within(self, least: Other, most: Other) -> Value:
        """Unlike the operator `Clip`, limits may differ from element to element."""
        return self.then("Max", least).then("Min", most)

    def where(self, condition: Value, otherwise: Other) -> Value:
        """This value where a condition holds, another elsewhere."""
        return condition.then("Where", self, otherwise)

    def as_type(self, dtype: npt.DTypeLike) -> Value:
        from onnx import helper

        return self.then("Cast", to=int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype))))

    def shaped(self, *shape: int) -> Value:
        """Reshaped: 0 keeps a dimension, -1 is what is left."""
        return self.then("Reshape", integers(shape))


Other = Value | float | npt.NDArray[Any]


def _operand(other: Other) -> str | npt.NDArray[Any]:
    if isinstance(other, Value):
        return other.name
    return other if isinstance(other, np.ndarray) else floats(other)


def floats(value: float | list[float]) -> npt.NDArray[np.float32]:
    return np.array(value, np.float32)


def integers(value: int | list[int] | tuple[int, ...]) -> npt.NDArray[np.int64]:
    return np.array(value, np.int64)
