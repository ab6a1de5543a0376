"""Provide helpers to build an ONNX graph: nodes, constants, and values with arithmetic operators.

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

OPSET = 17  # version of the operator set; ONNX Runtime has supported it since version 1.12
IR_VERSION = 8  # the oldest version of the file format that supports OPSET


class Graph:
    """Nodes and constants of a graph under construction; values are identified by name."""

    def __init__(self) -> None:
        """Start with an empty graph."""
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(self, operator: str, *inputs: str | npt.NDArray[Any], **attributes: Any) -> str:
        """Append a node with one output and return the name of the output; arrays become constants."""
        return self.add_multi_output(operator, 1, *inputs, **attributes)[0]

    def add_multi_output(
        self, operator: str, num_outputs: int, *inputs: str | npt.NDArray[Any], **attributes: Any
    ) -> list[str]:
        """Append a node with several outputs and return their names; arrays become constants."""
        from onnx import helper

        name = f"{operator}_{len(self.nodes)}"
        output_names = [f"{name}_{index}" for index in range(num_outputs)]
        input_names = [value if isinstance(value, str) else self._add_constant(value) for value in inputs]
        self.nodes.append(helper.make_node(operator, input_names, output_names, name, **attributes))
        return output_names

    def add_alias(self, value: Value, name: str) -> Value:
        """Append a node that gives a value a second name, and return the value with this name."""
        from onnx import helper

        self.nodes.append(helper.make_node("Identity", [value.name], [name]))
        return Value(self, name)

    def _add_constant(self, value: npt.NDArray[Any]) -> str:
        from onnx import numpy_helper

        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name


@dataclass(frozen=True)
class Value:
    """A value of the graph. Arithmetic with values appends nodes, and broadcasts as in NumPy."""

    graph: Graph
    name: str

    def apply(self, operator: str, *others: Operand, **attributes: Any) -> Value:
        """Apply an operator to this value and other operands."""
        return Value(self.graph, self.graph.add(operator, self.name, *map(_to_input, others), **attributes))

    def __add__(self, other: Operand) -> Value:
        """Append an `Add` node."""
        return self.apply("Add", other)

    def __sub__(self, other: Operand) -> Value:
        """Append a `Sub` node."""
        return self.apply("Sub", other)

    def __mul__(self, other: Operand) -> Value:
        """Append a `Mul` node."""
        return self.apply("Mul", other)

    def __truediv__(self, other: Operand) -> Value:
        """Append a `Div` node."""
        return self.apply("Div", other)

    def __matmul__(self, other: Value) -> Value:
        """Append a `MatMul` node."""
        return self.apply("MatMul", other)

    def clip(self, low: Operand, high: Operand) -> Value:
        """Limit the value; unlike the limits of the operator `Clip`, `low` and `high` may be arrays."""
        return self.apply("Max", low).apply("Min", high)

    def where(self, condition: Value, otherwise: Operand) -> Value:
        """Return this value where the condition holds, and `otherwise` elsewhere."""
        return condition.apply("Where", self, otherwise)

    def cast(self, dtype: npt.DTypeLike) -> Value:
        """Convert the value to another type."""
        from onnx import helper

        return self.apply("Cast", to=int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype))))

    def reshape(self, *shape: int) -> Value:
        """Reshape the value: 0 keeps a dimension, -1 is inferred."""
        return self.apply("Reshape", integers(shape))


Operand = Value | float | npt.NDArray[Any]


def _to_input(operand: Operand) -> str | npt.NDArray[Any]:
    if isinstance(operand, Value):
        return operand.name
    return operand if isinstance(operand, np.ndarray) else floats(operand)


def floats(value: float | list[float]) -> npt.NDArray[np.float32]:
    """Return a float32 constant."""
    return np.array(value, np.float32)


def integers(value: int | list[int] | tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Return an int64 constant."""
    return np.array(value, np.int64)
