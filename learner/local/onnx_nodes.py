"""The nodes and constants of an ONNX graph under construction."""

from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, helper

Constant = npt.NDArray[np.generic] | np.generic
Taken = str | Constant | list[int]
"""An input of a node: the name of another node, or a constant; a list of int64."""


class OnnxNodes:
    """Adds nodes and constants; each is named by the string that adding it returns."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, npt.NDArray[np.generic]] = {}

    def do(self, kind: str, *taken: Taken, **attributes: Any) -> str:
        """Add a node; return the name of its first output."""
        name = f"{kind.lower()}_{len(self.nodes)}"
        inputs = [each if isinstance(each, str) else self.constant(each) for each in taken]
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def constant(self, value: Constant | list[int], name: str = "") -> str:
        """Add a constant, unless one of this name exists."""
        name = name or f"constant_{len(self.constants)}"
        array = np.array(value, np.int64) if isinstance(value, list) else np.asarray(value)
        self.constants.setdefault(name, array)
        return name

    def total(self, numbers: str, *axes: int) -> str:
        """Add a sum over axes."""
        return self.do("ReduceSum", numbers, list(axes), keepdims=0)
