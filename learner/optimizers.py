"""Optimizers whose steps only add, for the coordinates of a row, compiled.

A row holds, one group of parameters after the other, what each optimizer needs of them: a group of
d coordinates lies in its components, d floats each.

    sgd       w
    adagrad   w, n      Duchi, Hazan and Singer, "Adaptive Subgradient Methods", JMLR 2011
    ftrl      z, n      McMahan et al., KDD 2013 (learner.ftrl): w is computed from them
    adam      w, m, v, and t once    Kingma and Ba, "Adam", ICLR 2015, Algorithm 1
    coin      z, g, r   Orabona and Tommasi, "Training Deep Networks without Learning Rates Through
              Coin Betting", NIPS 2017, Algorithm 1, with their betting fraction z / (beta + g)

A step computes what each of these gains from one gradient and adds it, in the view and in what is
pending alike; so additions of several learners commute and nobody's step is overwritten. For all
but Adam that is all there is to say. Adam's means are no sums: m becomes
beta1 m + (1 - beta1) g. It gains (1 - beta1)(g - m), which is the same for one learner. Of k
learners that step one row from the same state, each takes its share of m off: 1 - k (1 - beta1) is
left of it instead of beta1^k, equal to first order; v, which could then pass zero, is read as zero
below it. t counts the row's own steps, so a row that no example names keeps its means as they were
("lazy Adam"). The price is 2 d + 1 floats beside w where Adagrad has d, in every row and push.

Weight decay is lazy, and exact: what a row gained shrinks by exp(-decay) in a day of event time,
and what it missed since it was last seen is caught up when it is read or stepped. Since
exp(-a) exp(-b) = exp(-(a + b)), the moments at which it was read make no difference, and rows that
no example names cost nothing. An embedding decays to what it was initialized with, not to zero.
FTRL has l1 and l2 instead.

A coordinate of coin bets on the sign of its next gradient: z sums the gradients taken away, g their
sizes, r what its bets have brought, and w = (alpha + r) z / (beta (beta + g)). It has no learning
rate: one that has been right often has more to bet.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ingest.compiled import part, quotient_part
from learner import optimizer_spec as spec
from learner.ftrl import step, weight
from pserver.row_view import row_of

if TYPE_CHECKING:
    from learner.optimizer_spec import Optimizer

_KINDS = {spec.SGD: 0, spec.ADAGRAD: 1, spec.FTRL: 2, spec.ADAM: 3, spec.COIN: 4}
_SGD, _ADAGRAD, _FTRL, _ADAM, _COIN = _KINDS.values()
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_DAY_S = 86_400.0


class Group(NamedTuple):
    """Parameters of a row that one optimizer steps, as kernels take it."""

    kind: int
    offset: int
    """Where in a row its components begin."""
    coordinates: int
    alpha: np.float32
    inverse_alpha: np.float32
    beta: np.float32
    l1: np.float32
    l2: np.float32
    epsilon: np.float32
    beta1: np.float32
    beta2: np.float32
    decay_per_s: float


def floats(optimizer: Optimizer, coordinates: int) -> int:
    """Return how many floats of a row so many coordinates take."""
    if optimizer.name == spec.ADAM:
        return 3 * coordinates + 1 if coordinates else 0
    return coordinates * {spec.SGD: 1, spec.COIN: 3}.get(optimizer.name, 2)


def group_of(optimizer: Optimizer, offset: int, coordinates: int) -> Group:
    """Return the group of so many coordinates that begins at this float of a row."""
    return Group(
        _KINDS[optimizer.name],
        offset,
        coordinates,
        np.float32(optimizer.alpha),
        np.float32(1.0 / optimizer.alpha),
        np.float32(optimizer.beta),
        np.float32(optimizer.l1),
        np.float32(optimizer.l2),
        np.float32(optimizer.epsilon),
        np.float32(optimizer.beta1),
        np.float32(optimizer.beta2),
        optimizer.decay_per_day / _DAY_S,
    )


@quotient_part
def _bet(z, sizes, reward, group):  # type: ignore[no-untyped-def]
    """Return the weight of a coordinate of coin. Compiled."""
    # several learners that bet at once may lose more than one of them could
    wealth = max(group.alpha + reward, _ZERO)
    return wealth * z / (group.beta * (group.beta + sizes))


@part
def shrink_of(group, last_seen_s, now_s):  # type: ignore[no-untyped-def]
    """Return what decay has left since a row was last seen, of what it had gained. Compiled."""
    if group.decay_per_s == 0.0 or last_seen_s == 0 or now_s <= last_seen_s:
        return _ONE
    return np.float32(math.exp(-group.decay_per_s * (now_s - last_seen_s)))


@quotient_part
def gained_of(values, place, group, shrink, out):  # type: ignore[no-untyped-def]
    """Write what each coordinate of the row has gained to `out`. Compiled."""
    row, count, first = row_of(values, place), group.coordinates, group.offset
    second = first + count
    third = second + count
    w = row[first:second]
    if group.kind == _FTRL:
        squares = row[second:third]
        for k in range(count):
            out[k] = weight(w[k], math.sqrt(squares[k]), group)
    elif group.kind == _COIN:
        sizes, rewards = row[second:third], row[third : third + count]
        for k in range(count):
            out[k] = _bet(w[k], sizes[k], rewards[k], group)
    else:
        for k in range(count):
            out[k] = w[k] * shrink


@part
def _add(component, pending, gains):  # type: ignore[no-untyped-def]
    for k in range(gains.shape[0]):
        component[k] += gains[k]
        pending[k] += gains[k]


@part
def _step_sgd(w, group, shrink, gradients):  # type: ignore[no-untyped-def]
    for k in range(w.shape[0]):
        gradients[k] = (shrink - _ONE) * w[k] - group.alpha * gradients[k]


@quotient_part
def _step_adagrad(w, squares, more_squares, group, shrink, gradients):  # type: ignore[no-untyped-def]
    for k in range(w.shape[0]):
        square = gradients[k] * gradients[k]
        squares[k] += square
        more_squares[k] += square
        gradients[k] = -group.alpha * gradients[k] / (math.sqrt(squares[k]) + group.epsilon)
    for k in range(w.shape[0]):
        gradients[k] += (shrink - _ONE) * w[k]


@quotient_part
def _step_ftrl(z, squares, more_squares, group, gradients):  # type: ignore[no-untyped-def]
    for k in range(z.shape[0]):
        n = squares[k]
        root_n = math.sqrt(n)
        w = weight(z[k], root_n, group)
        gradients[k], n_gain = step(gradients[k], w, n, root_n, group)
        squares[k] += n_gain
        more_squares[k] += n_gain


@quotient_part
def _step_coin(z, sizes, rewards, more_sizes, more_rewards, group, gradients):  # type: ignore[no-untyped-def]
    for k in range(z.shape[0]):
        gradients[k] = -min(max(gradients[k], -group.beta), group.beta)
    for k in range(z.shape[0]):
        reward = gradients[k] * _bet(z[k], sizes[k], rewards[k], group)
        rewards[k] += reward
        more_rewards[k] += reward
    for k in range(z.shape[0]):
        size = abs(gradients[k])
        sizes[k] += size
        more_sizes[k] += size


@quotient_part
def _step_adam(w, means, squares, more_means, more_squares, steps, group, shrink, gradients):  # type: ignore[no-untyped-def]
    mean_part = np.float32(1.0 - math.pow(group.beta1, steps))
    square_part = np.float32(1.0 - math.pow(group.beta2, steps))
    for k in range(w.shape[0]):
        gain = (_ONE - group.beta1) * (gradients[k] - means[k])
        means[k] += gain
        more_means[k] += gain
    for k in range(w.shape[0]):
        v = max(squares[k], _ZERO)
        gain = (_ONE - group.beta2) * (gradients[k] * gradients[k] - v)
        squares[k] += gain
        more_squares[k] += gain
        gradients[k] = math.sqrt((v + gain) / square_part)
    for k in range(w.shape[0]):
        moved = -group.alpha * (means[k] / mean_part) / (gradients[k] + group.epsilon)
        gradients[k] = moved + (shrink - _ONE) * w[k]


@quotient_part
def step_row(values, more, place, group, shrink, gradients):  # type: ignore[no-untyped-def]
    """Add one step to the row, in the view (`values`) and in what is pending (`more`). Compiled.

    gradients: (coordinates,) of the loss by each; without meaning afterwards. shrink: what decay
    left since the last step.

    Every loop here works on several coordinates at a time, on two conditions. Its arrays are
    slices, of which the compiled code knows that no index is negative: slices written out, since
    kernels can return no array. And they are few: it first looks whether any two overlap.
    """
    row, more_row, count = row_of(values, place), row_of(more, place), group.coordinates
    first = group.offset
    second = first + count
    third = second + count
    last = third + count
    w = row[first:second]
    if group.kind == _SGD:
        _step_sgd(w, group, shrink, gradients)
    elif group.kind == _ADAGRAD:
        squares, more_squares = row[second:third], more_row[second:third]
        _step_adagrad(w, squares, more_squares, group, shrink, gradients)
    elif group.kind == _FTRL:
        squares, more_squares = row[second:third], more_row[second:third]
        _step_ftrl(w, squares, more_squares, group, gradients)
    elif group.kind == _COIN:
        sizes, rewards = row[second:third], row[third:last]
        more_sizes, more_rewards = more_row[second:third], more_row[third:last]
        _step_coin(w, sizes, rewards, more_sizes, more_rewards, group, gradients)
    else:
        means, squares = row[second:third], row[third:last]
        more_means, more_squares = more_row[second:third], more_row[third:last]
        row[last] += _ONE
        more_row[last] += _ONE
        state = w, means, squares, more_means, more_squares, row[last]
        _step_adam(*state, group, shrink, gradients)
    _add(w, more_row[first:second], gradients)
