"""Forward passes of the deep architectures as their papers print them: one example, plain numbers.

Parameters are lists by the name that torch gives them in a module; no module is called. A matrix
has one list per output, a sum is taken term by term, in double precision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torch import nn

    Vector = list[float]
    Parameters = Mapping[str, Any]


@dataclass
class Inputs:
    """Of one example."""

    wide: float
    """Sum of the weights."""
    vectors: list[Vector]
    items: list[Vector]
    """Of its history: those that are there, no others."""
    target: int = -1
    """Which of the vectors the items are compared with."""


def parameters_in(module: nn.Module) -> dict[str, Any]:
    """Return the numbers in a module by name."""
    return {name: each.tolist() for name, each in module.named_parameters()}


def dot(one: Vector, other: Vector) -> float:
    """Return the sum of products."""
    return math.fsum(a * b for a, b in zip(one, other, strict=True))


def _flat(vectors: Iterable[Vector]) -> Vector:
    return [each for vector in vectors for each in vector]


def _affine(parameters: Parameters, name: str, x: Vector) -> Vector:
    """W x + b."""
    rows = zip(parameters[f"{name}.weight"], parameters[f"{name}.bias"], strict=True)
    return [dot(row, x) + bias for row, bias in rows]


def _relu(x: Vector) -> Vector:
    return [max(0.0, each) for each in x]


def _numbers(parameters: Parameters, group: str) -> list[int]:
    """Return the numbers of the layers of a group that have a matrix, ascending."""
    names = [each.split(".") for each in parameters]
    return sorted({int(each[1]) for each in names if each[0] == group})


def _network(parameters: Parameters, x: Vector) -> float:
    """a^(l+1) = relu(W a^l + b) (Cheng et al., eq. 1), and one number of the last of them."""
    for number in _numbers(parameters, "deep"):
        x = _relu(_affine(parameters, f"deep.{number}", x))
    (answer,) = _affine(parameters, "last", x)
    return answer


def wide_and_deep(parameters: Parameters, given: Inputs) -> float:
    """Cheng et al. 2016, eq. 3."""
    return given.wide + _network(parameters, _flat(given.vectors))


def deepfm(parameters: Parameters, given: Inputs) -> float:
    """Guo et al. 2017, eqs. 1 to 4: all pairs, one after the other."""
    pairs = math.fsum(dot(one, other) for one, other in combinations(given.vectors, 2))
    return given.wide + pairs + _network(parameters, _flat(given.vectors))


def dcn_v2(parameters: Parameters, given: Inputs) -> float:
    """Wang et al. 2021, eq. 1 and figure 1a: the network is on top of the cross layers."""
    x0 = x = _flat(given.vectors)
    for number in _numbers(parameters, "cross"):
        crossed = _affine(parameters, f"cross.{number}", x)
        x = [a * b + c for a, b, c in zip(x0, crossed, x, strict=True)]
    return given.wide + _network(parameters, x)


def field_weighted_fm(parameters: Parameters, given: Inputs) -> float:
    """Pan et al. 2018, eq. 4: pairs of fields in order, r_ij 1 plus what the layer holds."""
    pairs = zip(parameters["strength"], combinations(given.vectors, 2), strict=True)
    return given.wide + math.fsum((1.0 + r) * dot(one, other) for r, (one, other) in pairs)


def din(parameters: Parameters, given: Inputs) -> float:
    """Zhou et al. 2018, eq. 3 and section 4.3: weights of items are not normalized."""
    shown = given.vectors[given.target]
    interest = [0.0] * len(shown)
    for item in given.items:
        pairs = list(zip(item, shown, strict=True))
        seen = [*item, *shown, *(i - s for i, s in pairs), *(i * s for i, s in pairs)]
        hidden = _relu(_affine(parameters, "attention.0", seen))
        (weight,) = _affine(parameters, "attention.2", hidden)
        interest = [so_far + weight * each for so_far, each in zip(interest, item, strict=True)]
    return given.wide + _network(parameters, [*_flat(given.vectors), *interest])


ARCHITECTURES: dict[str, Callable[[Parameters, Inputs], float]] = {
    "wide_and_deep": wide_and_deep,
    "deepfm": deepfm,
    "dcn_v2": dcn_v2,
    "field_weighted_fm": field_weighted_fm,
    "din": din,
}
