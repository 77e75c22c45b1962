"""Chooses constants that learn on any log, from its click rate and the inputs of an example.

Three things made the defaults of [optimizer] fail on unseen logs. A model began at
a rate of one half, and the weights of all ids shared in learning the true rate: the log loss was
twice that of a constant for thousands of examples. And the rate of a coordinate did not depend on
how many inputs step together. An example with n inputs moves its log-odds by n steps, and vectors
by more: a factorization machine with bags of a hundred items diverged. And a model with few clicks
or after a sudden drift answered worse than the click rate, with any constants.

So the intercept starts from the base rate, and the rates are divided by the inputs. For weights
that is the normalization of Ross, Mineiro and Langford ("Normalized Online Learning", UAI 2013),
taken once for the log instead of per example. A bag counts as one input, since the items of a
suggested bag weigh 1/sqrt(n) each: the sum of their squares is 1.

A weight of FTRL-Proximal (McMahan et al., KDD 2013) with n squared gradients behind it divides its
sum of gradients by beta / alpha + l2 + sqrt(n) / alpha. So `l2` in proportion to the inputs keeps
the first steps small: it is the precision of a prior whose variance the inputs share. `alpha` then
only says how fast steps shrink. With `alpha` 2 / inputs and `l2` 1, they shrank too fast to follow
drift. Weights beside a network keep these two values: on a week of a news site, DCN-V2 was worse
with larger ones. `l2` also holds the vectors of rare ids near their start. Layers step by Adagrad
(Duchi, Hazan and Singer, JMLR 2011), slowly, because they see the sum of the gradients of a
mini-batch.

All candidates of a request are scored before any of it is learned. So the longer the requests, the
larger the step that one of them makes, and the smaller the best `alpha`: with 5, 20, 40, 100 and
200 candidates, half of it or less was better by 0.2, 0.3, 0.4, 0.7 and 2 % (`tests.bench.slates`).

Clicks that arrive long after their shows are missing from the first examples, so `click_delay_s`
keeps the rate of a new model (`learner.inputs.click_delays`).

The answer is a mixture of the model and the click rate (`learner.calibration.shrinkage`), which
bounds what a bad model costs.
"""

from typing import NamedTuple

from headrace.learner.spec.architecture import FACTORIZATION_MACHINE, LOGISTIC_REGRESSION
from headrace.learner.spec.calibration_spec import SHRINKAGE

_WEIGHTS, _MOST_WEIGHTS = 6.0, 0.7
"""`alpha` of weights times inputs, and its bound for few inputs."""
_WEIGHTS_L2 = 0.5
"""`l2` of weights over inputs."""
_DEEP_WEIGHTS, _MOST_DEEP_WEIGHTS = 2.0, 0.3
"""The same rate beside a network; `l2` is then 1."""
_VECTORS, _MOST_VECTORS = 1.0, 0.1
_VECTORS_L2 = 10.0
_LAYERS = 0.01
_MINI_BATCH = 128
_LONG_REQUEST = 100.0
"""Candidates of a request, beside the first, that halve the `alpha` of weights."""
_LEAST_DELAY_S = 1.0
"""Clicks that arrive sooner are not missing for long enough to matter."""


class ConstantFactors(NamedTuple):
    """By what the constants of the rules are multiplied."""

    alpha: float = 1.0
    """That of weights."""
    l2: float = 1.0
    """That of weights without a network."""
    vectors_alpha: float = 1.0
    vectors_l2: float = 1.0
    layers_alpha: float = 1.0
    mini_batch: float = 1.0


UNSCALED = ConstantFactors()


class RobustConstants(NamedTuple):
    """Lines of a spec, by section."""

    model: list[str]
    """For `[model]`."""
    optimizer: list[str]
    """The section `[optimizer]` and its groups."""
    calibration: list[str]
    """The section `[calibration]`."""


def is_network(architecture: str) -> bool:
    """Whether an architecture has mini-batches and parameters beside those of its inputs."""
    return architecture not in (LOGISTIC_REGRESSION, FACTORIZATION_MACHINE)


def robust_constants(
    architecture: str,
    shows: int,
    clicks: int,
    inputs: float,
    delays_s: tuple[float, ...] = (),
    *,
    candidates: float = 1.0,
    factors: ConstantFactors = UNSCALED,
) -> RobustConstants:
    """Return constants for a log of this many shows and clicks.

    inputs: of an example, on average: fields and statistics; a bag is one. delays_s: mean times
    from a show to its click of groups of equally many clicks, empty if unknown. candidates: of
    a request, on average. factors: multiply the constants.
    """
    rate = min(max((clicks + 0.5) / (shows + 1.0), 1e-6), 0.999)
    inputs = max(inputs, 1.0)
    deep = is_network(architecture)
    share, most = (_DEEP_WEIGHTS, _MOST_DEEP_WEIGHTS) if deep else (_WEIGHTS, _MOST_WEIGHTS)
    long = 1.0 + (candidates - 1.0) / _LONG_REQUEST
    weights = factors.alpha * min(most, share / inputs) / long
    times = "" if factors.alpha == 1.0 else f"{factors.alpha:g} times "
    said = f"{times}{share:g} / {inputs:g} inputs, at most {most:g}"
    said += f", over {long:.2f} for {candidates:.0f} candidates" if candidates > 1.0 else ""
    lines = ["[optimizer]", f"alpha = {weights:.3g}  # {said}"]
    if not deep:
        l2 = factors.l2 * _WEIGHTS_L2
        lines.append(f"l2 = {l2 * inputs:.3g}  # {l2:g} for each input")
    if architecture != LOGISTIC_REGRESSION:
        vectors = factors.vectors_alpha * min(_MOST_VECTORS, _VECTORS / inputs)
        lines += ["", "[optimizer.embeddings]", 'name = "ftrl"']
        lines += [f"alpha = {vectors:.3g}", f"l2 = {factors.vectors_l2 * _VECTORS_L2:g}"]
    if deep:
        lines += ["", "[optimizer.dense]", f"alpha = {factors.layers_alpha * _LAYERS:g}"]
    calibration = [
        "[calibration]",
        f'kind = "{SHRINKAGE}"  # limits the damage of an inaccurate model',
    ]
    model = [f"base_rate = {rate:.4g}  # the click rate of the log"]
    if deep and factors.mini_batch != 1.0:
        model.append(f"mini_batch = {factors.mini_batch * _MINI_BATCH:.0f}")
    if delays_s and sum(delays_s) / len(delays_s) >= _LEAST_DELAY_S:
        listed = ", ".join(f"{each:.4g}" for each in delays_s)
        model.append(
            f"click_delay_s = [{listed}]  # mean times of groups of equally many clicks"
            if len(delays_s) > 1
            else f"click_delay_s = {listed}  # mean time until a click"
        )
    return RobustConstants(model, lines, calibration)
