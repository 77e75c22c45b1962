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
drift. Beside a network they keep these values: DCN-V2 was worse with larger ones on a week of a
news site. `l2` also holds the vectors of rare ids near their start. Layers step by Adagrad (Duchi,
Hazan and Singer, JMLR 2011), slowly, because they see the sum of the gradients of a mini-batch.

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
_LEAST_DELAY_S = 1.0
"""Clicks that arrive sooner are not missing for long enough to matter."""


class RobustConstants(NamedTuple):
    """Lines of a spec, by section."""

    model: list[str]
    """For `[model]`."""
    optimizer: list[str]
    """The section `[optimizer]` and its groups."""
    calibration: list[str]
    """The section `[calibration]`."""


def robust_constants(
    architecture: str,
    shows: int,
    clicks: int,
    inputs: float,
    delays_s: tuple[float, ...] = (),
    *,
    alpha_times: float = 1.0,
    l2_times: float = 1.0,
) -> RobustConstants:
    """Return constants for a log of this many shows and clicks.

    inputs: of an example, on average: fields and statistics; a bag is one. delays_s: mean times
    from a show to its click of groups of equally many clicks, empty if unknown. alpha_times,
    l2_times: multiply those of the weights.
    """
    rate = min(max((clicks + 0.5) / (shows + 1.0), 1e-6), 0.999)
    inputs = max(inputs, 1.0)
    deep = architecture not in (LOGISTIC_REGRESSION, FACTORIZATION_MACHINE)
    share, most = (_DEEP_WEIGHTS, _MOST_DEEP_WEIGHTS) if deep else (_WEIGHTS, _MOST_WEIGHTS)
    weights = alpha_times * min(most, share / inputs)
    times = "" if alpha_times == 1.0 else f"{alpha_times:g} times "
    lines = [
        "[optimizer]",
        f"alpha = {weights:.3g}  # {times}{share:g} / {inputs:g} inputs, at most {most:g}",
    ]
    if not deep:
        l2 = l2_times * _WEIGHTS_L2
        lines.append(f"l2 = {l2 * inputs:.3g}  # {l2:g} for each input")
    if architecture != LOGISTIC_REGRESSION:
        lines += ["", "[optimizer.embeddings]", 'name = "ftrl"']
        lines += [f"alpha = {min(_MOST_VECTORS, _VECTORS / inputs):.3g}", f"l2 = {_VECTORS_L2}"]
    if deep:
        lines += ["", "[optimizer.dense]", f"alpha = {_LAYERS}"]
    calibration = [
        "[calibration]",
        f'kind = "{SHRINKAGE}"  # limits the damage of an inaccurate model',
    ]
    model = [f"base_rate = {rate:.4g}  # the click rate of the log"]
    if delays_s and sum(delays_s) / len(delays_s) >= _LEAST_DELAY_S:
        listed = ", ".join(f"{each:.4g}" for each in delays_s)
        model.append(
            f"click_delay_s = [{listed}]  # mean times of groups of equally many clicks"
            if len(delays_s) > 1
            else f"click_delay_s = {listed}  # mean time until a click"
        )
    return RobustConstants(model, lines, calibration)
