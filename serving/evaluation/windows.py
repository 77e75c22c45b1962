"""What is published: figures of windows, whole and by slice, of the learner and of each alias.

A window is the sum of its minutes. It ends either where everything is known (`settled`: the clicks
of its last impression must have come) or with the newest minute, where clicks are still to come
(`open`: the AUC can be read, the calibration cannot). Drift compares a window with the one of equal
length before it.

What evaluation has published, read by whoever wants it: commands, pages, tests.
"""

from __future__ import annotations

from math import isnan, log
from typing import TYPE_CHECKING

import msgspec

from headrace.ingest.kafka import read_all
from headrace.serving.errors import EvaluationError
from headrace.serving.evaluation.tally import UNIT, Tally, auc, score_drift, value_drift
from headrace.serving.evaluation.window_pane import (
    OTHER,
    WHOLE,
    PaneScores,
    PaneSummary,
    combine,
    narrowed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from headrace.ingest.kafka import KafkaSettings
    from headrace.serving.evaluation.evaluator import Evaluator
    from headrace.serving.evaluation.window_pane import Slice

SETTLED, OPEN = "settled", "open"


class Windows(msgspec.Struct, frozen=True):
    """Which windows are published."""

    lengths_ms: tuple[int, ...] = (60_000, 600_000, 3_600_000)
    """Each made of whole minutes. The first one tumbles, the others slide by a minute."""
    most_values: int = 8
    """Of each field get a slice of their own: what is published is bounded by it."""


class WindowMetrics(msgspec.Struct, frozen=True):
    """One alias over one window in one slice. None: undefined, for lack of impressions or labels.

    The names are the contract with whoever reads the topic.
    """

    model: str
    alias: str
    """Who gave the scores; "learned": the learner, before it learned the outcome."""
    window: str
    """Its length, such as 10m."""
    until: str
    """"settled" or "open"."""
    slice: str
    """"all", or field=value."""
    begin_ms: int
    end_ms: int
    """Event time of the impressions: from, and before."""
    sample: float
    """Share of requests that were looked at."""
    shown: int
    """Impressions with an outcome."""
    scored: int
    """Those of them that have a score: the figures below are of these."""
    given: int | None
    """Scores given in this time, to impressions with and without outcome. Of all slices alone."""
    clicks: int
    ctr: float | None
    """Clicks by scored impression."""
    ctr_predicted: float | None
    calibration: float | None
    """Clicks expected by clicks that came."""
    auc: float | None
    auc_error: float | None
    """The AUC is exact to within this."""
    request_auc: float | None
    """Mean of the requests' own."""
    requests: int
    """Requests with both labels, which that is the mean of."""
    log_loss: float | None
    normalized_entropy: float | None
    score_drift: float | None
    """Population stability index of the scores against the window before."""
    value_drift: dict[str, float]
    """The same of each sliced field's values. Of all slices alone."""
    compared: int
    """Impressions scored by the learner, too."""
    difference: float | None
    """Mean of score served less score at learning."""
    distance: float | None
    """Mean of its absolute value."""

    @property
    def key(self) -> str:
        """WindowKey it stands in the compacted topic."""
        return f"{self.model}/{self.alias}/{self.window}/{self.until}/{self.slice}"


def figures(
    evaluation: Evaluator,
    model: str,
    windows: Windows,
    enough: Callable[[], bool] = lambda: False,
) -> list[WindowMetrics]:
    """Return everything that is to be published of what was folded so far.

    `enough`: see `Evaluator.summaries`; windows that are settled are exact all the same.
    """
    panes = evaluation.summaries(enough)
    if not panes:
        return []
    pane_ms = evaluation.rules.pane_ms
    shown = [begin for begin, summary in panes.items() if summary.seen] or list(panes)
    ends = {OPEN: max(shown) + pane_ms}
    if evaluation.closed:
        ends[SETTLED] = max(evaluation.closed) + pane_ms
    made: list[WindowMetrics] = []
    for until, end_ms in ends.items():
        for length_ms in windows.lengths_ms:
            begin_ms = end_ms - length_ms
            now, before = (
                narrowed(combine(_between(panes, start, start + length_ms)), windows.most_values)
                for start in (begin_ms, begin_ms - length_ms)
            )
            where = WindowKey(model, _named(length_ms), until, begin_ms, end_ms)
            made += _of_window(where, now, before)
    return made


class WindowKey(msgspec.Struct, frozen=True):
    """Which window figures are of."""

    model: str
    window: str
    until: str
    begin_ms: int
    end_ms: int


def total(evaluation: Evaluator) -> PaneSummary:
    """Return all that was ever folded, closed or not, without slices where it is long past."""
    return combine([evaluation.past, *(evaluation.summaries().values())])


def _between(panes: Mapping[int, PaneSummary], begin_ms: int, end_ms: int) -> list[PaneSummary]:
    return [summary for begin, summary in panes.items() if begin_ms <= begin < end_ms]


def _of_window(where: WindowKey, now: PaneSummary, before: PaneSummary) -> Iterator[WindowMetrics]:
    drifts = _value_drifts(now, before)
    for alias, scored in now.series.items():
        earlier = before.series.get(alias, PaneScores())
        for name in now.seen:
            drift = drifts if name == WHOLE else {}
            given = scored.given if name == WHOLE else None
            mine, theirs = (each.tallies.get(name, Tally()) for each in (scored, earlier))
            yield _figures(where, alias, name, now, mine, theirs, given, drift)


def _figures(
    where: WindowKey,
    alias: str,
    name: Slice,
    now: PaneSummary,
    mine: Tally,
    before: Tally,
    given: int | None,
    drifts: dict[str, float],
) -> WindowMetrics:
    scored, clicks = mine.impressions, mine.clicks
    area, error = auc(mine)
    loss = _ratio(mine.loss_sum / UNIT, scored)
    rate = _ratio(clicks, scored)
    return WindowMetrics(
        where.model,
        alias,
        where.window,
        where.until,
        "all" if name == WHOLE else f"{name[0]}={name[1]}",
        where.begin_ms,
        where.end_ms,
        now.sample,
        now.seen[name][0],
        scored,
        given,
        clicks,
        rate,
        _ratio(mine.score_sum / UNIT, scored),
        _ratio(mine.score_sum / UNIT, clicks),
        _known(area),
        _known(error),
        _ratio(mine.request_auc_sum / UNIT, mine.requests),
        mine.requests,
        loss,
        None if loss is None else _ratio(loss, _entropy(rate)),
        _known(score_drift(mine, before)),
        drifts,
        mine.compared,
        _ratio(mine.difference_sum / UNIT, mine.compared),
        _ratio(mine.distance_sum / UNIT, mine.compared),
    )


def _value_drifts(now: PaneSummary, before: PaneSummary) -> dict[str, float]:
    fields = sorted({field for field, _ in now.seen if field})
    found = {}
    for field in fields:
        # values that only one of the windows tells apart are among the others in both
        common = {v for f, v in now.seen if f == field} & {v for f, v in before.seen if f == field}
        counts = [_value_counts(each, field, common - {OTHER}) for each in (now, before)]
        drift = value_drift(*counts)
        if not isnan(drift):
            found[field] = drift
    return found


def _value_counts(summary: PaneSummary, field: str, values: set[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for (name, value), (shown, _) in summary.seen.items():
        if name == field:
            key = value if value in values else OTHER
            counts[key] = counts.get(key, 0) + shown
    return counts


def _entropy(rate: float | None) -> float:
    if rate is None or rate in (0.0, 1.0):
        return 0.0
    return -(rate * log(rate) + (1.0 - rate) * log(1.0 - rate))


def _ratio(above: float, below: float) -> float | None:
    return above / below if below else None


def _known(value: float) -> float | None:
    return None if isnan(value) else value


def _named(length_ms: int) -> str:
    """Return 90 s as 90s, ten minutes as 10m, an hour as 1h."""
    for unit, size_ms in (("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if length_ms % size_ms == 0:
            return f"{length_ms // size_ms}{unit}"
    return f"{length_ms}ms"


RESULTS = "evaluation"
"""The compacted topic of all models' figures."""


def read_published(kafka: KafkaSettings, topic: str = RESULTS) -> list[WindowMetrics]:
    """Return the figures that were published last, in the order of their keys.

    Raises EvaluationError if there is a message that is none, KafkaUnreachable, MissingTopic.
    """
    last: dict[bytes, bytes] = {}
    for record in read_all(kafka, topic):
        key = record.key or b""
        last.pop(key, None)
        if record.value:
            last[key] = record.value
    try:
        return [msgspec.json.decode(last[key], type=WindowMetrics) for key in sorted(last)]
    except msgspec.DecodeError as error:
        raise EvaluationError(f"topic {topic}: expected figures of evaluation: {error}") from error
