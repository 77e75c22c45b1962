"""The nodes and constants of an ONNX graph under construction."""

from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, helper


class OnnxNodes:
    """Adds nodes and constants; each is named by the string that adding it returns."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, npt.NDArray[np.generic]] = {}

    def do(self, kind: str, *taken: str, **attributes: Any) -> str:
        """Add a node; return the name of its first output."""
        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(taken), [name], **attributes))
        return name

    def constant(self, value: npt.NDArray[np.generic] | np.generic, name: str = "") -> str:
        """Add a constant, unless one of this name exists."""
        name = name or f"constant_{len(self.constants)}"
        self.constants.setdefault(name, np.asarray(value))
        return name

    def ints(self, *numbers: int) -> str:
        """Add a list of int64."""
        return self.constant(np.array(numbers, np.int64))

    def real(self, number: float) -> str:
        """Add a float32."""
        return self.constant(np.float32(number))

    def total(self, numbers: str, *axes: int) -> str:
        """Add a sum over axes."""
        return self.do("ReduceSum", numbers, self.ints(*axes), keepdims=0)
