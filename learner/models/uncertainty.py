"""Uncertainty of a prediction: how far one more outcome could move its log-odds.

McMahan et al., "Ad click prediction: a view from the trenches", KDD 2013, section 7. An optimizer
with a rate per coordinate knows how much it saw of each: the sum of squared gradients n. The step
that an example makes in coordinate i is at most alpha_i |g_i|. So if the same inputs were seen once
more, the log-odds could not move farther than

    u(x) = sum_i alpha_i |x_i|            (for |x_i| and the loss's slope up to 1)

with alpha_i = alpha / (beta + sqrt(n_i)) for ftrl, as in the paper, and alpha / (sqrt(n_i + 1) +
epsilon) for adagrad, whose step has its own gradient in n. It needs only what rows hold, and falls
with each outcome of an input. It is in log-odds, not a probability, and not a confidence interval.
Use it to explore, to rank what to learn about, or to refuse to bid.

A coordinate of coin has no rate, but keeps the sizes of its gradients. The expected size of a slope
p - y is 2 p (1 - p), its expected square p (1 - p). So half of the sum of the sizes is what n would
be, and the rate is that of ftrl with the same alpha and beta. It falls with each outcome as the
others do. It is not a bound: a coordinate that was often right moves farther. (Coin takes neither
plain numbers nor weighted examples, for which this would not hold.)

SGD's rate does not depend on what was seen, and Adam's means forget it, so these two have no
uncertainty.

An item that is in a bag m times is m inputs here. Its row is stepped m times and counts m times, so
it may move m times as far as that.

Only weights are covered, one for each input: all of a logistic regression, the linear part of a
factorization machine, the wide part of a deep model. Vectors and layers are not; they share the
outcomes of their inputs, so inputs that are new to the weights are new to them. The figure is about
the model's own log-odds, before any calibration.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.ingest.features.encoder import Encoded
from headrace.learner.errors import NoUncertainty
from headrace.learner.inputs.example_inputs import find_candidate
from headrace.learner.inputs.learned_weights import weigh_items
from headrace.learner.inputs.preparation import InputPreparation
from headrace.learner.kernels.row_values import RowParameters
from headrace.learner.spec.optimizer_spec import ADAGRAD, COIN, FTRL, Optimizer
from headrace.pserver.rows.table import RowTable
from headrace.runtime.kernels.numba_kernels import kernel, read_only

_SEEN = 1
"""The float of n, or of the sum of sizes, in a row of any width: behind w or z."""


class UncertaintyRates(NamedTuple):
    """alpha_i = alpha / (added + sqrt(share seen_i + ahead))."""

    alpha: float
    added: float
    share: float
    ahead: float


def rates_of(optimizer: Optimizer, model: str) -> UncertaintyRates:
    """Return the rates of a model's weights. Raises NoUncertainty."""
    if optimizer.name == FTRL:
        return UncertaintyRates(optimizer.alpha, optimizer.beta, 1.0, 0.0)
    if optimizer.name == COIN:
        return UncertaintyRates(optimizer.alpha, optimizer.beta, 0.5, 0.0)
    if optimizer.name == ADAGRAD:
        return UncertaintyRates(optimizer.alpha, optimizer.epsilon, 1.0, 1.0)
    raise NoUncertainty(model, optimizer.name)


def uncertainty(
    rates: UncertaintyRates,
    parameters: RowParameters,
    inputs: InputPreparation,
    view: RowTable,
    features: Encoded,
    event_ms: npt.NDArray[np.int64],
) -> npt.NDArray[np.float64]:
    """Return u(x) of n impressions shown at `event_ms`, shape (n,). Never adds a row."""
    found = np.empty(len(features), np.float64)
    _sum_rates(
        view.columns,
        (rates, parameters),
        inputs.program,
        inputs.gate,
        inputs.features(features),
        read_only(event_ms, np.int64),
        inputs.scratch(features, 1),
        found,
    )
    return found


@kernel
def _sum_rates(columns, constants, program, gate, features, event_ms, scratch, found):  # type: ignore[no-untyped-def]
    rates, parameters = constants
    for i in range(found.shape[0]):
        count, unseen = find_candidate(columns, program, gate, features, event_ms[i], i, scratch)
        reads = scratch.reads if unseen else scratch.places[0]
        weigh_items(columns.values, parameters, features, i, reads, scratch, 0)
        total = 0.0
        for k in range(count):
            seen = 0.0
            if reads[k] >= 0:
                seen = np.float64(columns.values[reads[k], _SEEN])
            rate = rates.alpha / (rates.added + math.sqrt(rates.share * seen + rates.ahead))
            total += rate * abs(np.float64(scratch.x[0, k]))
        found[i] = total
