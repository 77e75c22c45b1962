"""The contract of a deep model's network: a module that returns one number for each example.

A module is made with `NetworkShape` and called with `NetworkBatch`; it returns the log-odds of a
click, (n,). A user's module that keeps this contract (`architecture = "module"`, `module =
"package.file:Class"`, on the import path or in the working directory) is trained and served like
those in `networks` (`user_module` loads it). Its parameters are stored in rows of the parameter
server. State that a module keeps anywhere else never reaches a server.
"""

from typing import NamedTuple

from torch import Tensor, nn


class NetworkShape(NamedTuple):
    """The sizes from which a module makes its layers."""

    vectors: int
    """Vectors of an example: one for each single-valued field, number, statistic and bag."""
    dimensions: int
    """Floats of each vector."""
    layers: tuple[int, ...]
    """Widths of hidden layers."""
    cross_layers: int
    target: int
    """The vector that items of a history are compared with; -1 if the spec names none."""


class NetworkBatch(NamedTuple):
    """Inputs of n examples."""

    wide: Tensor
    """(n,) sum of the weights of all inputs, intercept included."""
    vectors: Tensor
    """(n, vectors, d): embeddings; that of a number times its value, that of a bag the sum of its
    items. Order: single-valued fields, numbers, statistics, bags, each by number."""
    items: Tensor
    """(n, longest, d) embeddings of the items of the bag `history`, in order, or (n, 0, d)."""
    present: Tensor
    """(n, longest) bool: False where an example has fewer items."""


def hidden_layers(width: int, layers: tuple[int, ...]) -> nn.Sequential:
    """Return fully connected layers with ReLU between them and a linear output."""
    stack: list[nn.Module] = []
    for each in layers:
        stack += [nn.Linear(width, each), nn.ReLU()]
        width = each
    return nn.Sequential(*stack)
