"""An independent recount of the totals: all batches at once, joined in dictionaries.

Nothing of it is shared with what it checks but the bin of a score and the unit of a sum.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from headrace.ingest.examples.batch import Examples, Kind
from headrace.learner.loop.scores import Scores
from headrace.serving.evaluation.messages import LEARNED, ServedPrediction
from headrace.serving.evaluation.tally import UNIT, Tally, bins
from headrace.serving.evaluation.window_pane import MISSING, WHOLE, PaneScores, PaneSummary, Slice


@dataclass(slots=True)
class Shown:
    """One impression."""

    request: str
    time_ms: int
    values: dict[str, str]
    label: int = 0
    scores: dict[str, float] = field(default_factory=dict)


def recount(
    examples: Iterable[Examples], scores: Iterable[Scores], predictions: Iterable[ServedPrediction]
) -> PaneSummary:
    """Return the expected totals of an evaluation of every request."""
    shown = _shown(examples)
    given: dict[str, set[str]] = defaultdict(set)
    given[LEARNED] = set()
    for batch in scores:
        for name, score in zip(batch.impression_ids.to_pylist(), batch.scores, strict=True):
            given[LEARNED].add(name)
            if name in shown:
                shown[name].scores.setdefault(LEARNED, float(score))
    for made in sorted(predictions, key=lambda each: (each.time, each.score)):
        given[made.alias].add(made.impression_id)
        if made.impression_id in shown:
            shown[made.impression_id].scores.setdefault(made.alias, made.score)
    slices = _slices(shown)
    seen = {name: (len(them), sum(each.label for each in them)) for name, them in slices.items()}
    series = {}
    for alias, those in given.items():
        found = {}
        for name, them in slices.items():
            mine = [each for each in them if alias in each.scores]
            if mine:
                found[name] = _tally(mine, alias)
        series[alias] = PaneScores(len(those), found)
    return PaneSummary(1.0, seen, series)


def _shown(examples: Iterable[Examples]) -> dict[str, Shown]:
    shown: dict[str, Shown] = {}
    for batch in examples:
        slices = {name: values.to_pylist() for name, values in batch.slices.items()}
        names, requests = batch.impression_ids.to_pylist(), batch.request_ids.to_pylist()
        for i, (name, request) in enumerate(zip(names, requests, strict=True)):
            if batch.kinds[i] != Kind.CLICKED:
                values = {each: slices[each][i] or MISSING for each in slices}
                time_ms = int(batch.shown_ms[i])
                shown.setdefault(name, Shown(request or name, time_ms, values))
            shown[name].label |= int(batch.labels[i])
    return shown


def _slices(shown: dict[str, Shown]) -> dict[Slice, list[Shown]]:
    slices: dict[Slice, list[Shown]] = defaultdict(list)
    for each in shown.values():
        slices[WHOLE].append(each)
        for name, value in each.values.items():
            slices[name, value].append(each)
    return slices


def _tally(them: list[Shown], alias: str) -> Tally:
    scores = np.array([each.scores[alias] for each in them])
    labels = np.array([each.label for each in them])
    histogram = Counter((2 * bins(scores) + labels).tolist())
    likely = np.where(labels > 0, scores, 1.0 - scores)
    aucs = _request_aucs(them, alias)
    differences = np.array(
        [
            each.scores[alias] - each.scores[LEARNED]
            for each in them
            if alias != LEARNED and LEARNED in each.scores
        ]
    )
    keys = sorted(histogram)
    return Tally(
        np.array(keys, np.int64),
        np.array([histogram[key] for key in keys], np.int64),
        _sum(scores),
        _sum(-np.log(likely)),
        len(aucs),
        _sum(np.array(aucs)),
        len(differences),
        _sum(differences),
        _sum(np.abs(differences)),
    )


def _request_aucs(them: list[Shown], alias: str) -> list[float]:
    """Pair by pair within one minute, because evaluation splits a request at a minute's end."""
    requests: dict[tuple[str, int], tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for each in them:
        requests[each.request, each.time_ms // 60_000][each.label].append(each.scores[alias])
    return [
        sum((up > down) + (up == down) / 2 for up in ups for down in downs)
        / (len(ups) * len(downs))
        for downs, ups in requests.values()
        if ups and downs
    ]


def _sum(values: np.ndarray) -> int:
    return sum(round(float(value) * UNIT) for value in values)
