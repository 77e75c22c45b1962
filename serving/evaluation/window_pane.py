"""One minute of impressions (a pane): rows while it is open, a summary once it is closed.

A pane is open until the time for clicks is over. Until then its rows are kept and its metrics are
computed from them again, so that the published metrics match all known events. Afterwards only the
summary remains: tallies of all impressions and of each slice.

An impression counts once, with one score per name: the first score of the learner, and the earliest
one that each alias served. Rare values of a field share one slice.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.ingest.features.hashing import ABSENT
from headrace.runtime.undecodable import UNDECODABLE
from headrace.serving.evaluation.messages import (
    CLICKED,
    LEARNED,
    SCORED,
    SERVED,
    SHOWN,
    Hashes,
    Table,
)
from headrace.serving.evaluation.tally import MeasuredValues, Tally, merge

Floats = npt.NDArray[np.float64]
Slice = tuple[str, str]

WHOLE: Slice = ("", "")
"""The slice of all impressions. Other slices are a field and a value."""
OTHER = "*other"
"""Stands for all rare values."""
MISSING = "*absent"
"""Stands for a missing value."""


@dataclass(slots=True)
class OpenPane:
    """The rows of an open pane, in order of arrival."""

    sample: float = 1.0
    shown: list[Table] = field(default_factory=list)
    slices: list[Hashes] = field(default_factory=list)  # (n, fields) each
    texts: dict[int, str] = field(default_factory=dict)
    """The values behind the hashes of `slices`."""
    clicked: list[Table] = field(default_factory=list)
    scored: list[Table] = field(default_factory=list)
    served: dict[str, list[Table]] = field(default_factory=dict)
    """Predictions of this minute by alias."""
    _earliest: dict[str, tuple[int, tuple[Hashes, Floats]]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Count of rows, including predictions."""
        kept = (*self.shown, *self.clicked, *self.scored)
        return sum(map(len, kept)) + self.predictions

    @property
    def predictions(self) -> int:
        """Count of predictions."""
        return sum(len(table) for tables in list(self.served.values()) for table in tables)

    def earliest(self, alias: str) -> tuple[Hashes, Floats]:
        """Return the ids that an alias served, ascending, and the earliest score of each."""
        tables = self.served.get(alias, ())
        known = self._earliest.get(alias)
        if known is None or known[0] != len(tables):
            rows = _joined(tables, SERVED)
            rows = rows[np.lexsort((rows["score"], rows["time_ms"]))]
            known = self._earliest[alias] = len(tables), _first(rows)
        return known[1]


@dataclass(frozen=True, slots=True)
class PaneScores:
    """Scores of the learner or of an alias."""

    given: int = 0
    """Impressions scored in this pane, shown or not."""
    tallies: Mapping[Slice, Tally] = field(default_factory=dict)
    """Tallies of the impressions of this pane that have a score."""


@dataclass(frozen=True, slots=True)
class PaneSummary:
    """Summary of one pane or several. Additive, see `combine`."""

    sample: float = 1.0
    """Share of requests that were evaluated: the smallest of the panes."""
    seen: Mapping[Slice, tuple[int, int]] = field(default_factory=dict)
    """Counts of impressions and clicks."""
    series: Mapping[str, PaneScores] = field(default_factory=dict)


def summarize(
    pane: OpenPane, around: Sequence[OpenPane], fields: Sequence[str], most_values: int
) -> PaneSummary:
    """Return the current summary of a pane.

    around: panes in order of time, including this one, whose predictions may belong to its
    impressions. most_values: values per field with a slice of their own.
    """
    shown = _joined(pane.shown, SHOWN)
    ids, place = np.unique(np.ascontiguousarray(shown["id"]), return_index=True)
    shown = shown[place]
    clicked = np.isin(ids, _joined(pane.clicked, CLICKED)["id"])
    labels = (shown["label"] | clicked).astype(np.uint8)
    hashes = np.concatenate([np.zeros((0, len(fields)), np.uint64), *pane.slices])[place]
    masks = _slices(hashes, pane.texts, fields, most_values)
    requests = np.ascontiguousarray(shown["request"])
    scored_ids, scored = _first(_joined(pane.scored, SCORED))
    learned = _found(ids, scored_ids, scored)
    series = {
        LEARNED: PaneScores(scored_ids.shape[0], _tallies(masks, labels, learned, requests, None))
    }
    for alias in sorted({alias for each in around for alias in each.served}):
        scores = np.full(ids.shape[0], np.nan)
        for each in around:
            if np.isnan(scores).any():
                scores = np.where(np.isnan(scores), _found(ids, *each.earliest(alias)), scores)
        given = pane.earliest(alias)[0].shape[0]
        tallies = _tallies(masks, labels, scores, requests, learned)
        if given or tallies:
            series[alias] = PaneScores(given, tallies)
    seen = {name: (int(mask.sum()), int(labels[mask].sum())) for name, mask in masks.items()}
    return PaneSummary(pane.sample, seen if len(ids) else {}, series)


def combine(summaries: Iterable[PaneSummary]) -> PaneSummary:
    """Return the summary of all impressions. The order of the summaries does not matter."""
    summaries = list(summaries)
    seen: dict[Slice, tuple[int, int]] = {}
    given: dict[str, int] = {}
    tallies: dict[str, dict[Slice, list[Tally]]] = {}
    for each in summaries:
        for name, (shown, clicked) in each.seen.items():
            before = seen.get(name, (0, 0))
            seen[name] = before[0] + shown, before[1] + clicked
        for alias, scored in each.series.items():
            given[alias] = given.get(alias, 0) + scored.given
            mine = tallies.setdefault(alias, {})
            for name, one in scored.tallies.items():
                mine.setdefault(name, []).append(one)
    return PaneSummary(
        min((each.sample for each in summaries), default=1.0),
        seen,
        {
            alias: PaneScores(given[alias], {name: merge(all_) for name, all_ in mine.items()})
            for alias, mine in tallies.items()
        },
    )


def narrowed(summary: PaneSummary, most_values: int) -> PaneSummary:
    """Return a summary with the most frequent values of each field, and the rest in one slice."""
    ranked: dict[str, list[tuple[int, str]]] = {}
    for (name, value), (shown, _) in summary.seen.items():
        if name and value != OTHER:
            ranked.setdefault(name, []).append((-shown, value))
    kept = {
        (name, value)
        for name, values in ranked.items()
        for _, value in sorted(values)[:most_values]
    }
    place = {
        name: name if name in kept or name == WHOLE else (name[0], OTHER) for name in summary.seen
    }
    return _renamed(summary, place)


def whole(summary: PaneSummary) -> PaneSummary:
    """Return a summary without its slices."""
    series = {
        alias: PaneScores(
            each.given, {name: one for name, one in each.tallies.items() if name == WHOLE}
        )
        for alias, each in summary.series.items()
    }
    seen = {name: counts for name, counts in summary.seen.items() if name == WHOLE}
    return PaneSummary(summary.sample, seen, series)


def _renamed(summary: PaneSummary, place: Mapping[Slice, Slice]) -> PaneSummary:
    parts = [
        PaneSummary(
            summary.sample,
            {new: summary.seen[old]},
            {
                alias: PaneScores(0, {new: each.tallies[old]})
                for alias, each in summary.series.items()
                if old in each.tallies
            },
        )
        for old, new in place.items()
    ]
    given = {alias: PaneScores(each.given) for alias, each in summary.series.items()}
    return combine([PaneSummary(summary.sample, {}, given), *parts])


def _slices(
    hashes: Hashes, texts: Mapping[int, str], fields: Sequence[str], most_values: int
) -> dict[Slice, npt.NDArray[np.bool_]]:
    """Return the mask of impressions of each slice."""
    masks = {WHOLE: np.ones(hashes.shape[0], bool)}
    for column, name in enumerate(fields):
        codes, counts = np.unique(hashes[:, column], return_counts=True)
        ranked = sorted(
            (-int(count), MISSING if code == ABSENT else texts[int(code)], code)
            for code, count in zip(codes, counts, strict=True)
        )
        rest = np.ones(hashes.shape[0], bool)
        for _, text, code in ranked[:most_values]:
            mask = hashes[:, column] == code
            masks[name, text] = masks.get((name, text), False) | mask
            rest &= ~mask
        if rest.any():
            masks[name, OTHER] = masks.get((name, OTHER), False) | rest
    return masks


def _tallies(
    masks: Mapping[Slice, npt.NDArray[np.bool_]],
    labels: npt.NDArray[np.uint8],
    scores: Floats,
    requests: Hashes,
    learned: Floats | None,
) -> dict[Slice, Tally]:
    known = ~np.isnan(scores)
    if not known.any():
        return {}
    others = None if learned is None else learned[known]
    measured = MeasuredValues(labels[known], scores[known], requests[known], others)
    parts = {name: mask[known] for name, mask in masks.items()}
    return {name: measured.tally(part) for name, part in parts.items() if part.any()}


def _first(table: Table) -> tuple[Hashes, Floats]:
    """Return the ids, ascending, and the first score of each."""
    ids, place = np.unique(np.ascontiguousarray(table["id"]), return_index=True)
    return ids, table["score"][place]


def _found(ids: Hashes, scored_ids: Hashes, scores: Floats) -> Floats:
    """Return the score of each id; NaN without a score."""
    found = np.full(ids.shape[0], np.nan)
    if scored_ids.shape[0]:
        place = np.minimum(np.searchsorted(scored_ids, ids), scored_ids.shape[0] - 1)
        there = scored_ids[place] == ids
        found[there] = scores[place[there]]
    return found


def _joined(tables: Sequence[Table], kind: np.dtype[np.void]) -> Table:
    return np.concatenate(tables) if tables else np.zeros(0, kind)


class _WireTally(msgspec.Struct, array_like=True):
    keys: bytes
    counts: bytes
    sums: tuple[int, ...]


class _WireSummary(msgspec.Struct, array_like=True):
    format: int
    sample: float
    seen: list[tuple[str, str, int, int]]
    series: dict[str, tuple[int, list[tuple[str, str, _WireTally]]]]


_FORMAT = 1
_decoder = msgspec.msgpack.Decoder(_WireSummary)


class UnreadableSummary(ValueError):
    """A value of the table has another format."""


def pack(summary: PaneSummary) -> bytes:
    """Encode a summary."""
    series = {
        alias: (
            each.given,
            [
                (
                    *name,
                    _WireTally(one.keys.astype("<i4").tobytes(), one.counts.tobytes(), one.sums),
                )
                for name, one in each.tallies.items()
            ],
        )
        for alias, each in summary.series.items()
    }
    seen = [(*name, *counts) for name, counts in summary.seen.items()]
    return msgspec.msgpack.encode(_WireSummary(_FORMAT, summary.sample, seen, series))


def unpack(blob: bytes) -> PaneSummary:
    """Decode a summary. Raises UnreadableSummary."""
    try:
        wire = _decoder.decode(blob)
    except UNDECODABLE as error:
        raise UnreadableSummary(f"summary: expected MessagePack, got: {error}") from error
    if wire.format != _FORMAT:
        raise UnreadableSummary(
            f"summary: expected format {_FORMAT}, got {wire.format}: use the version of headrace "
            "that wrote it, or a newer one"
        )
    series = {
        alias: PaneScores(given, {(name, value): _tally(one) for name, value, one in tallies})
        for alias, (given, tallies) in wire.series.items()
    }
    seen = {(name, value): (shown, clicked) for name, value, shown, clicked in wire.seen}
    return PaneSummary(wire.sample, seen, series)


def _tally(wire: _WireTally) -> Tally:
    keys = np.frombuffer(wire.keys, "<i4").astype(np.int64)
    return Tally(keys, np.frombuffer(wire.counts, "<i8"), *wire.sums)
