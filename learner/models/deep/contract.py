"""What a network of a deep model is: a module that makes one number of an example's inputs.

A module is made with `NetworkShape` and called with `NetworkBatch`; it returns the log-odds of a
click, (n,). That is all the contract there is, and a module of one's own that keeps it
(`architecture = "module"`, `module = "package.file:Class"`, on the import path or in the working
directory) is trained and served as those here are (`own_module` sees to it). Its parameters live in
rows of the parameter server: what it keeps anywhere else would never reach a server.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn


class NetworkShape(NamedTuple):
    """What a module has to know to make its layers."""

    vectors: int
    """Vectors an example has: one a single-valued field, number, statistic and bag."""
    dimensions: int
    """Floats of each."""
    layers: tuple[int, ...]
    """Widths of hidden layers."""
    cross_layers: int
    target: int
    """Which vector the items of histories are compared with; -1 where the spec names none."""


class NetworkBatch(NamedTuple):
    """Inputs of n examples."""

    wide: Tensor
    """(n,) sum of the weights of all inputs, the intercept's among them."""
    vectors: Tensor
    """(n, vectors, d): embeddings, of a number times its value, of a bag the sum of its items'. In
    the order: single-valued fields, numbers, statistics, bags, each by ascending number."""
    items: Tensor
    """(n, longest, d) embeddings of the items of the bag `history`, in order, or (n, 0, d)."""
    present: Tensor
    """(n, longest) bool: False where an example has fewer items."""


def hidden_layers(width: int, layers: tuple[int, ...]) -> nn.Sequential:
    """Return fully connected layers with ReLU between them, and their output as it is."""
    made: list[nn.Module] = []
    for each in layers:
        made += [nn.Linear(width, each), nn.ReLU()]
        width = each
    return nn.Sequential(*made)
