"""Weighs the shows of a young model by the share of clicks that can have arrived.

With the policy `immediate`, a show is a negative at once, and its click takes that back when it
arrives. In a model that has learned for long, clicks of earlier shows arrive while new shows are
learned, and both cancel. In a new model they do not: clicks that take an hour are missing for the
first hour. A model with a `base_rate` then falls far below it, and needs thousands of examples to
return.

    [model]
    click_delay_s = 3600.0

gives a show that comes T seconds after the model's first example the weight
1 - exp(-T / click_delay_s). If delays are exponential with this mean and the traffic is steady,
this is the share of the clicks of one second that arrive in the same second. So shows and clicks
cancel from the first example on, exactly where p is the click rate. The weight changes the rate of
learning and not the optimum, and it is 1 once clicks arrive as fast as they are caused.

Most delays are not exponential: half of the clicks come within a minute, and the mean is an hour.
With the mean alone, such a model predicts too much. A list

    click_delay_s = [30.0, 30.0, 5000.0, 20000.0]

has the means of groups of equally many clicks, each exponential, and the weight is the mean of
theirs. `suggest` fits it to the delays of a log (`learner.suggestion.delay_mixture`).

The first example is `first_seen` of the intercept's row. It is folded by minimum, so it is the same
for several learners and after a restart, and a restored or copied model is not new. *Refused:* an
estimate of the delays from the stream. It would know the long delays last, when they are over.
*Limit:* an item that is new in an old model still begins with shows whose clicks are missing.

With `[label] wait_s`, clicks within the wait are in the shows, so that clicks count as arrived from
T + `wait_s` on. (The exact weight depends on p too; it differs by less than the clicks that come
after the wait and have not arrived.)

The weights of importance that correct for delays in a model of any age are in
`learner.kernels.loss` (Ktena et al., RecSys 2019); delays as exponential are from Chapelle,
"Modeling delayed feedback in display advertising", KDD 2014.
"""

import numpy as np

from headrace.ingest.examples.batch import Kind
from headrace.learner.inputs.example_inputs import INTERCEPT, LabelledColumns
from headrace.pserver.rows.deltas import NEVER
from headrace.pserver.rows.table import RowTable, find

_SETTLED = 17.0
"""Delays after which the weight is 1 in single precision."""


def weigh_shows(
    view: RowTable, labelled: LabelledColumns, delays_s: tuple[float, ...], wait_s: float = 0.0
) -> LabelledColumns:
    """Return the examples with lighter shows, as long as the model in `view` is new.

    delays_s: mean times from show to click of groups of equally many clicks; empty if shows weigh
    the same at any age. wait_s: from show to example.
    """
    if not delays_s or not labelled.kinds.shape[0]:
        return labelled
    seconds, columns = labelled.event_ms // 1000, view.columns
    begin, place = int(seconds.min()), find(columns.slots, columns.ids, np.uint64(INTERCEPT))
    if place >= 0 and columns.first_seen[place] != NEVER:
        seen = int(columns.first_seen[place])
        if begin - seen > _SETTLED * max(delays_s):
            return labelled
        begin = min(begin, seen)
    shown = labelled.kinds == Kind.SHOWN
    weights = np.ones(shown.shape[0]) if not labelled.weights.shape[0] else labelled.weights
    ages_s = labelled.event_ms / 1000.0 - begin + wait_s
    arrived = np.mean([-np.expm1(-ages_s / each) for each in delays_s], axis=0)
    return labelled._replace(weights=np.where(shown, weights * arrived, weights).astype(np.float32))
