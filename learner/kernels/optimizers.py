"""Optimizers whose steps only add, for the coordinates of a row, compiled.

A row holds the state of each group of parameters, one group after the other. The state of a group
of d coordinates has the components below, d floats each.

    sgd       w
    adagrad   w, n      Duchi, Hazan and Singer, "Adaptive Subgradient Methods", JMLR 2011
    ftrl      z, n      McMahan et al., KDD 2013 (learner.kernels.ftrl): w is computed from them
    adam      w, m, v, and t once    Kingma and Ba, "Adam", ICLR 2015, Algorithm 1
    coin      z, g, r   Orabona and Tommasi, "Training Deep Networks without Learning Rates Through
              Coin Betting", NIPS 2017, Algorithm 2 (its betting fraction is linear, that of
              Algorithm 1 a sigmoid), with a bound on gradients that is given and not the largest
              seen: a maximum is not a sum

A step computes what each of these gains from one gradient and adds it, to the view and to what is
pending. Additions of several learners commute, and no step is overwritten. Adam alone needs more.
Its means are not sums: m becomes beta1 m + (1 - beta1) g. It gains (1 - beta1)(g - m), which is the
same for one learner. When k learners step one row from the same state, each removes its share of m:
1 - k (1 - beta1) of it remains instead of beta1^k, equal to first order. v could then fall below
zero, and is read as zero there. t counts the row's own steps, so a row that no example names keeps
its means ("lazy Adam"). The price is 2 d + 1 floats beside w, where Adagrad has d, in every row and
push.

Weight decay is lazy, and exact: what a row gained shrinks by exp(-decay) in a day of event time,
and what it missed since it was last seen is caught up when it is read or stepped. Since
exp(-a) exp(-b) = exp(-(a + b)), the moments at which it was read make no difference, and rows that
no example names cost nothing. An embedding decays to its initial value, not to zero. Learners that
step one row before they fold each other's pushes each catch up what it missed: that time is then
taken off more than once. FTRL has l1 and l2 instead.

A coordinate of coin bets on the sign of its next gradient: z sums the gradients taken away, g their
sizes, r what its bets have brought, and w = (alpha + r) z / (beta (beta + g)). It has no learning
rate: one that has been right often has more to bet.
"""

import math
from typing import NamedTuple

import numpy as np

from headrace.learner.intrinsics.simd import LANES, absolute, add, chosen, eight, root, take
from headrace.learner.kernels.ftrl import step, weight
from headrace.learner.spec.optimizer_spec import ADAGRAD, ADAM, COIN, FTRL, SGD, Optimizer
from headrace.pserver.intrinsics.row_view import row_of
from headrace.runtime.kernels.numba_kernels import inlined, inlined_ieee_division

_KINDS = {SGD: 0, ADAGRAD: 1, FTRL: 2, ADAM: 3, COIN: 4}
_SGD, _ADAGRAD, _FTRL, _ADAM, _COIN = _KINDS.values()
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_DAY_S = 86_400.0


class ParameterGroup(NamedTuple):
    """Parameters of a row that one optimizer steps, as kernels take it."""

    kind: int
    offset: int
    """The first float of its components in a row."""
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


def group_of(optimizer: Optimizer, offset: int, coordinates: int) -> ParameterGroup:
    """Return the group of so many coordinates that begins at this float of a row."""
    return ParameterGroup(
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


@inlined_ieee_division
def _bet(z, sizes, reward, group):  # type: ignore[no-untyped-def]
    """Return the weight of a coordinate of coin, or of eight. Compiled."""
    wealth = group.alpha + reward
    # several learners that bet at once may lose more than one of them could
    wealth = chosen(wealth < _ZERO, _ZERO, wealth)
    return wealth * z / (group.beta * (group.beta + sizes))


@inlined
def shrink_of(group, last_seen_s, now_s):  # type: ignore[no-untyped-def]
    """Return what decay has left since a row was last seen, of what it had gained. Compiled."""
    if group.decay_per_s == 0.0 or last_seen_s == 0 or now_s <= last_seen_s:
        return _ONE
    return np.float32(math.exp(-group.decay_per_s * (now_s - last_seen_s)))


@inlined_ieee_division
def gained_at(row, group, shrink, at):  # type: ignore[no-untyped-def]
    """Return what coordinates of a row have gained. Compiled.

    row: (width,). shrink: what decay left of it. at: which coordinates (learner.intrinsics.simd).
    """
    first = group.offset
    second = first + group.coordinates
    if group.kind == _FTRL:
        return weight(take(row, first, at), root(take(row, second, at)), group)
    if group.kind == _COIN:
        sizes, rewards = take(row, second, at), take(row, second + group.coordinates, at)
        return _bet(take(row, first, at), sizes, rewards, group)
    return take(row, first, at) * shrink


@inlined
def _gain(row, more, first, at, gain):  # type: ignore[no-untyped-def]
    add(row, first, at, gain)
    add(more, first, at, gain)


@inlined
def takes_sums(group):  # type: ignore[no-untyped-def]
    """Whether one step may take the sum of several gradients: the bound of coin would cut it."""
    return group.kind != _COIN


@inlined_ieee_division
def begin_step(row, more, group):  # type: ignore[no-untyped-def]
    """Count a step of a row where that is needed; return what `step_at` is to correct by.

    That is 1 - beta^t for both means of Adam, Algorithm 1.
    """
    if group.kind != _ADAM:
        return _ONE, _ONE
    last = group.offset + 3 * group.coordinates
    row[last] += _ONE
    more[last] += _ONE
    steps = row[last]
    mean_part = np.float32(1.0 - math.pow(group.beta1, steps))
    return mean_part, np.float32(1.0 - math.pow(group.beta2, steps))


@inlined_ieee_division
def step_at(row, more, group, shrink, parts, at, gradient):  # type: ignore[no-untyped-def]
    """Add a step of coordinates of a row, in the view (`row`) and in what is pending (`more`).

    row, more: (width,). shrink: what decay left since the last step. parts: of `begin_step`. at:
    which coordinates (learner.intrinsics.simd). gradient: of the loss by these. Compiled.
    """
    first = group.offset
    second = first + group.coordinates
    if group.kind == _SGD:
        caught_up = (shrink - _ONE) * take(row, first, at)
        _gain(row, more, first, at, caught_up - group.alpha * gradient)
    elif group.kind == _ADAGRAD:
        square = gradient * gradient
        rate_root = root(take(row, second, at) + square) + group.epsilon
        gain = -group.alpha * gradient / rate_root + (shrink - _ONE) * take(row, first, at)
        _gain(row, more, second, at, square)
        _gain(row, more, first, at, gain)
    elif group.kind == _FTRL:
        z, n = take(row, first, at), take(row, second, at)
        root_n = root(n)
        z_gain, n_gain = step(gradient, weight(z, root_n, group), n, root_n, group)
        _gain(row, more, first, at, z_gain)
        _gain(row, more, second, at, n_gain)
    elif group.kind == _COIN:
        _step_coin(row, more, group, first, second, at, gradient)
    else:
        _step_adam(row, more, group, shrink, parts, first, second, at, gradient)


@inlined_ieee_division
def _step_coin(row, more, group, first, second, at, gradient):  # type: ignore[no-untyped-def]
    third = second + group.coordinates
    outcome = chosen(gradient < -group.beta, group.beta, -gradient)
    outcome = chosen(outcome < -group.beta, -group.beta, outcome)
    z, sizes, rewards = take(row, first, at), take(row, second, at), take(row, third, at)
    _gain(row, more, third, at, outcome * _bet(z, sizes, rewards, group))
    _gain(row, more, second, at, absolute(outcome))
    _gain(row, more, first, at, outcome)


@inlined_ieee_division
def _step_adam(row, more, group, shrink, parts, first, second, at, gradient):  # type: ignore[no-untyped-def]
    mean_part, square_part = parts
    third = second + group.coordinates
    w, mean, square = take(row, first, at), take(row, second, at), take(row, third, at)
    mean_gain = (_ONE - group.beta1) * (gradient - mean)
    v = chosen(square < _ZERO, _ZERO, square)
    square_gain = (_ONE - group.beta2) * (gradient * gradient - v)
    deviation = root((v + square_gain) / square_part)
    moved = -group.alpha * ((mean + mean_gain) / mean_part) / (deviation + group.epsilon)
    _gain(row, more, second, at, mean_gain)
    _gain(row, more, third, at, square_gain)
    _gain(row, more, first, at, moved + (shrink - _ONE) * w)


@inlined
def step_row(values, more, place, group, shrink, gradients):  # type: ignore[no-untyped-def]
    """Add one step to the row, in the view (`values`) and in what is pending (`more`). Compiled.

    gradients: (coordinates,) of the loss by each. shrink: what decay left since the last step.
    """
    row, more_row, count = row_of(values, place), row_of(more, place), group.coordinates
    parts = begin_step(row, more_row, group)
    whole = count - count % LANES
    for k in range(0, whole, LANES):
        gradient = take(gradients, 0, eight(k))
        step_at(row, more_row, group, shrink, parts, eight(k), gradient)
    for k in range(whole, count):
        step_at(row, more_row, group, shrink, parts, k, take(gradients, 0, k))
