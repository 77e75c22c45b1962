"""Forward passes of the deep architectures as their papers print them: one example, plain numbers.

Parameters are lists by the name that torch gives them in a module; no module is called. A matrix
has one list per output, a sum is taken term by term, in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


def _linear(rows: list[Vector], x: Vector) -> Vector:
    return [dot(row, x) for row in rows]


def _recurrent_state(parameters: Parameters, items: list[Vector]) -> Vector:
    """Hidasi et al. 2016, eqs. 1 to 4, with torch's gates: rows of r, z and n, one below another.

    r = sigmoid(W_r x + U_r h), z = sigmoid(W_z x + U_z h), n = tanh(W_n x + r * (U_n h)),
    h' = (1 - z) * n + z * h; each product of a matrix has a bias.
    """
    layer, states = 0, items
    while f"encoder.gru.weight_ih_l{layer}" in parameters:
        of_input, of_state, input_bias, state_bias = (
            parameters[f"encoder.gru.{name}_l{layer}"]
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        size = len(of_state) // 3
        h, after = [0.0] * size, []
        for x in states:
            a = [y + b for y, b in zip(_linear(of_input, x), input_bias, strict=True)]
            c = [y + b for y, b in zip(_linear(of_state, h), state_bias, strict=True)]
            r = [_sigmoid(a[i] + c[i]) for i in range(size)]
            z = [_sigmoid(a[size + i] + c[size + i]) for i in range(size)]
            n = [math.tanh(a[2 * size + i] + r[i] * c[2 * size + i]) for i in range(size)]
            h = [(1.0 - z[i]) * n[i] + z[i] * h[i] for i in range(size)]
            after.append(h)
        states, layer = after, layer + 1
    return states[-1]


def _layer_norm(parameters: Parameters, name: str, x: Vector) -> Vector:
    """alpha * (x - mean) / sqrt(variance + epsilon) + beta (Kang and McAuley, section 3.2)."""
    mean = math.fsum(x) / len(x)
    variance = math.fsum((each - mean) ** 2 for each in x) / len(x)
    alpha, beta = parameters[f"{name}.weight"], parameters[f"{name}.bias"]
    scale = math.sqrt(variance + 1e-5)
    return [a * (each - mean) / scale + b for a, b, each in zip(alpha, beta, x, strict=True)]


def _attended(made: list[Vector], size: int) -> Vector:
    """softmax(q K^T / sqrt(d)) V (eq. 2) of the last position; made: q, k, v of each up to it."""
    query = made[-1][:size]
    powers = [math.exp(dot(query, each[size : 2 * size]) / size**0.5) for each in made]
    whole = math.fsum(powers)
    values = [each[2 * size :] for each in made]
    return [
        math.fsum(p / whole * v[i] for p, v in zip(powers, values, strict=True))
        for i in range(size)
    ]


def _attention_state(parameters: Parameters, items: list[Vector]) -> Vector:
    """Kang and McAuley 2018, eqs. 1 to 6: position 0 is that of the latest item."""
    positions, size = parameters["encoder.positions"], len(items[0])
    ages = range(len(items) - 1, -1, -1)
    states = [
        [x + p for x, p in zip(item, positions[age], strict=True)]
        for item, age in zip(items, ages, strict=True)
    ]
    block = 0
    while f"encoder.blocks.{block}.projections.weight" in parameters:
        name = f"encoder.blocks.{block}"
        normal = [_layer_norm(parameters, f"{name}.before_attention", x) for x in states]
        made = [_linear(parameters[f"{name}.projections.weight"], x) for x in normal]
        after = []
        for t, x in enumerate(states):
            seen = _attended(made[: t + 1], size)
            attended = [a + b for a, b in zip(x, seen, strict=True)]
            hidden = _layer_norm(parameters, f"{name}.before_network", attended)
            hidden = _relu(_affine(parameters, f"{name}.network.0", hidden))
            hidden = _affine(parameters, f"{name}.network.2", hidden)
            after.append([a + b for a, b in zip(attended, hidden, strict=True)])
        states, block = after, block + 1
    return states[-1]


def sequence(parameters: Parameters, given: Inputs) -> float:
    """The state of the encoder, and its product with the target, beside all vectors."""
    shown = given.vectors[given.target]
    state = [0.0] * len(shown)
    if given.items:
        attention = "encoder.positions" in parameters
        state = (_attention_state if attention else _recurrent_state)(parameters, given.items)
    product = [a * b for a, b in zip(state, shown, strict=True)]
    return given.wide + _network(parameters, [*_flat(given.vectors), *state, *product])


ARCHITECTURES: dict[str, Callable[[Parameters, Inputs], float]] = {
    "wide_and_deep": wide_and_deep,
    "deepfm": deepfm,
    "dcn_v2": dcn_v2,
    "field_weighted_fm": field_weighted_fm,
    "din": din,
    "gru": sequence,
    "attention": sequence,
}
