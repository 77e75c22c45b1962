"""Computes and reads the published metrics of windows, by alias and slice.

A window is the sum of its minutes. A `settled` window ends where the time for clicks is over. An
`open` window ends with the newest minute, whose clicks are incomplete: its AUC is meaningful, its
calibration is not. Drift compares a window with the previous one of equal length.

`read_published` reads the metrics back, for commands, pages and tests, and `read_minutes` those of
past minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import isnan, log

import msgspec

from headrace.ingest.kafka.reading.bounded_reader import read_all
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.runtime.undecodable import UNDECODABLE
from headrace.serving.errors import ServingError
from headrace.serving.evaluation.evaluator import Evaluator
from headrace.serving.evaluation.tally import UNIT, Tally, auc, score_drift
from headrace.serving.evaluation.window_pane import (
    WHOLE,
    PaneScores,
    PaneSummary,
    Slice,
    combine,
    narrowed,
)

SETTLED, OPEN = "settled", "open"
WindowPlace = tuple[str, str, str, int, int]
"""Model, length, `settled` or `open`, begin and end of a window."""


class Windows(msgspec.Struct, frozen=True):
    """The windows to publish."""

    lengths_ms: tuple[int, ...] = (60_000, 600_000, 3_600_000)
    """Multiples of the shortest. The first window tumbles, the others slide by the first."""
    most_values: int = 8
    """Values per field with a slice of their own. Bounds the published metrics."""

    @classmethod
    def shortest(cls, window_s: int) -> Windows:
        """Return windows of this length, and of 10 and 60 times this length."""
        return cls(tuple(1000 * window_s * times for times in (1, 10, 60)))


class WindowMetrics(msgspec.Struct, frozen=True):
    """Metrics of one alias, window and slice. None: undefined, without impressions or labels.

    The names are the contract with readers of the topic.
    """

    model: str
    alias: str
    """The alias that served the scores; "learned": the learner, before it learned the outcome."""
    window: str
    """Length, such as 10m."""
    until: str
    """"settled" or "open"."""
    slice: str
    """"all", or field=value."""
    begin_ms: int
    end_ms: int
    """Event time of the impressions: up to, exclusive."""
    sample: float
    """Share of requests that were evaluated."""
    shown: int
    """Impressions with an outcome."""
    scored: int
    """Impressions with an outcome and a score. The metrics below are of these."""
    given: int | None
    """Scores in this window, with and without outcome. In the slice "all" only."""
    clicks: int
    ctr: float | None
    """Clicks per scored impression."""
    ctr_predicted: float | None
    calibration: float | None
    """Expected clicks per click."""
    auc: float | None
    auc_error: float | None
    """Bound of the AUC's error."""
    request_auc: float | None
    """Mean AUC of the requests with both labels."""
    requests: int
    """Requests with both labels."""
    log_loss: float | None
    normalized_entropy: float | None
    score_drift: float | None
    """Population stability index of the scores against the previous window."""
    compared: int
    """Impressions that the learner scored, too."""
    difference: float | None
    """Mean of served score minus score at learning."""
    distance: float | None
    """Mean absolute difference."""

    @property
    def key(self) -> str:
        """Key in the compacted topic."""
        return f"{self.model}/{self.alias}/{self.window}/{self.until}/{self.slice}"


def newest_windows(
    evaluation: Evaluator,
    model: str,
    windows: Windows,
    enough: Callable[[], bool] = lambda: False,
) -> list[WindowMetrics]:
    """Return the metrics to publish.

    enough: see `Evaluator.summaries`. Settled windows are exact in any case.
    """
    panes = evaluation.summaries(enough)
    if not panes:
        return []
    pane_ms = evaluation.rules.pane_ms
    seen = [begin for begin, summary in panes.items() if summary.seen] or list(panes)
    ends = {OPEN: max(seen) + pane_ms}
    if evaluation.closed:
        ends[SETTLED] = max(evaluation.closed) + pane_ms
    metrics: list[WindowMetrics] = []
    for until, end_ms in ends.items():
        for length_ms in windows.lengths_ms:
            begin_ms = end_ms - length_ms
            now, before = (
                narrowed(combine(_between(panes, start, start + length_ms)), windows.most_values)
                for start in (begin_ms, begin_ms - length_ms)
            )
            where = model, _named(length_ms), until, begin_ms, end_ms
            metrics += _of_window(where, now, before)
    return metrics


def settled_between(
    evaluation: Evaluator, model: str, windows: Windows, after_ms: int
) -> list[WindowMetrics]:
    """Return the settled windows of the shortest length, except the newest.

    `newest_windows` returns that one. After a pause, many minutes close at once. after_ms: end of
    the newest one at the time of the last call.
    """
    length_ms, metrics = windows.lengths_ms[0], list[WindowMetrics]()
    newest_ms = max(evaluation.closed, default=0) + evaluation.rules.pane_ms
    first = min((begin for begin in evaluation.closed if begin >= after_ms), default=newest_ms)
    panes = {begin: each for begin, each in evaluation.closed.items() if begin >= after_ms}
    for end_ms in range(first + length_ms, newest_ms, length_ms):
        now = narrowed(combine(_between(panes, end_ms - length_ms, end_ms)), windows.most_values)
        where = model, _named(length_ms), SETTLED, end_ms - length_ms, end_ms
        nothing = combine([])
        metrics += [each for each in _of_window(where, now, nothing) if each.slice == "all"]
    return metrics


def total(evaluation: Evaluator) -> PaneSummary:
    """Return the summary of all folded messages. Minutes long past have no slices."""
    return combine([evaluation.past, *(evaluation.summaries().values())])


def _between(panes: Mapping[int, PaneSummary], begin_ms: int, end_ms: int) -> list[PaneSummary]:
    return [summary for begin, summary in panes.items() if begin_ms <= begin < end_ms]


def _of_window(
    where: WindowPlace, now: PaneSummary, before: PaneSummary
) -> Iterator[WindowMetrics]:
    for alias, scored in now.series.items():
        earlier = before.series.get(alias, PaneScores())
        for name in now.seen:
            given = scored.given if name == WHOLE else None
            mine, theirs = (each.tallies.get(name, Tally()) for each in (scored, earlier))
            yield _figures(where, alias, name, now, mine, theirs, given)


def _figures(
    where: WindowPlace,
    alias: str,
    name: Slice,
    now: PaneSummary,
    mine: Tally,
    before: Tally,
    given: int | None,
) -> WindowMetrics:
    scored, clicks = mine.impressions, mine.clicks
    area, error = auc(mine)
    loss = _ratio(mine.loss_sum / UNIT, scored)
    rate = _ratio(clicks, scored)
    model, window, until, begin_ms, end_ms = where
    return WindowMetrics(
        model,
        alias,
        window,
        until,
        "all" if name == WHOLE else f"{name[0]}={name[1]}",
        begin_ms,
        end_ms,
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
        mine.compared,
        _ratio(mine.difference_sum / UNIT, mine.compared),
        _ratio(mine.distance_sum / UNIT, mine.compared),
    )


def _entropy(rate: float | None) -> float:
    if rate is None or rate in (0.0, 1.0):
        return 0.0
    return -(rate * log(rate) + (1.0 - rate) * log(1.0 - rate))


def _ratio(above: float, below: float) -> float | None:
    return above / below if below else None


def _known(value: float) -> float | None:
    return None if isnan(value) else value


def _named(length_ms: int) -> str:
    """Return 90s for 90 seconds, 10m for ten minutes, 1h for an hour."""
    for unit, size_ms in (("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if length_ms % size_ms == 0:
            return f"{length_ms // size_ms}{unit}"
    return f"{length_ms}ms"


RESULTS = "evaluation"
"""The compacted topic with the metrics of all models."""


def read_published(kafka: KafkaSettings) -> list[WindowMetrics]:
    """Return the last published metrics in the order of their keys.

    Raises ServingError for an invalid message, KafkaUnreachable, MissingTopic.
    """
    last: dict[bytes, bytes] = {}
    for record in read_all(kafka, RESULTS):
        key = record.key or b""
        last.pop(key, None)
        if record.value:
            last[key] = record.value
    return [_published(last[key]) for key in sorted(last)]


def read_minutes(
    kafka: KafkaSettings, alias: str, *, window_s: int = 60
) -> Iterator[WindowMetrics]:
    """Yield the settled minutes of an alias that the compacted topic still has, oldest first.

    window_s: of the shortest windows, where evaluation runs with another length than a minute.

    Raises ServingError for an invalid message, KafkaUnreachable, MissingTopic.
    """
    ending = f"/{alias}/{_named(1000 * window_s)}/{SETTLED}/all".encode()
    for record in read_all(kafka, RESULTS):
        if record.value and (record.key or b"").endswith(ending):
            yield _published(record.value)


def _published(value: bytes) -> WindowMetrics:
    try:
        return msgspec.json.decode(value, type=WindowMetrics)
    except UNDECODABLE as error:
        raise ServingError(f"topic {RESULTS}: expected evaluation metrics, got: {error}") from error
