"""One minute of impressions: their rows while it is open, and what remains of it when it is closed.

A minute (a pane) is open until the clicks of its impressions must have come. Until then its rows
are kept and its figures computed from them anew, so that what is published of it is always right
for what is known. Then only its summary stays: tallies, whole and by value of each sliced field.

An impression counts once, and so does its score: the first one that the learner gave it, and the
earliest that each alias served for it. Values of a field that are rare in the pane share one slice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from headrace.ingest.features import ABSENT
from headrace.serving.evaluation.messages import CLICKED, LEARNED, SCORED, SERVED, SHOWN
from headrace.serving.evaluation.tally import MeasuredValues, Tally, merge

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt

    from headrace.serving.evaluation.messages import Hashes, Table

    Floats = npt.NDArray[np.float64]
    Slice = tuple[str, str]

WHOLE: Slice = ("", "")
"""The slice of all impressions; the others are a field and its value."""
OTHER = "*other"
"""In place of values that are too rare to be told apart."""
MISSING = "*absent"
"""In place of a value that the event does not have."""


@dataclass(slots=True)
class OpenPane:
    """The rows of an open pane, in the order they came."""

    sample: float = 1.0
    shown: list[Table] = field(default_factory=list)
    slices: list[Hashes] = field(default_factory=list)  # (n, fields) each
    texts: dict[int, str] = field(default_factory=dict)
    """The values behind the hashes of `slices`."""
    clicked: list[Table] = field(default_factory=list)
    scored: list[Table] = field(default_factory=list)
    served: dict[str, list[Table]] = field(default_factory=dict)
    """By alias, of the predictions that were made in this minute."""
    _earliest: dict[str, tuple[int, tuple[Hashes, Floats]]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """How many it keeps."""
        kept = (*self.shown, *self.clicked, *self.scored)
        return sum(map(len, kept)) + self.predictions

    @property
    def predictions(self) -> int:
        """How many of them are predictions."""
        return sum(len(table) for tables in list(self.served.values()) for table in tables)

    def earliest(self, alias: str) -> tuple[Hashes, Floats]:
        """Return the ids that an alias served, ascending, and the score that each got first."""
        tables = self.served.get(alias, ())
        known = self._earliest.get(alias)
        if known is None or known[0] != len(tables):
            made = _joined(tables, SERVED)
            made = made[np.lexsort((made["score"], made["time_ms"]))]
            known = self._earliest[alias] = len(tables), _first(made)
        return known[1]


@dataclass(frozen=True, slots=True)
class PaneScores:
    """Scores of one name: the learner's, or an alias's."""

    given: int = 0
    """Impressions that got one in this time, whether they were shown or not."""
    tallies: Mapping[Slice, Tally] = field(default_factory=dict)
    """Of the impressions shown in this time that have one."""


@dataclass(frozen=True, slots=True)
class PaneSummary:
    """What remains of a pane, or of many: it adds up, see `combine`."""

    sample: float = 1.0
    """Share of requests that were looked at: the least of what was added up."""
    seen: Mapping[Slice, tuple[int, int]] = field(default_factory=dict)
    """Impressions shown, and those of them that were clicked."""
    series: Mapping[str, PaneScores] = field(default_factory=dict)


def summarize(
    pane: OpenPane, around: Sequence[OpenPane], fields: Sequence[str], most_values: int
) -> PaneSummary:
    """Return the summary of a pane as it stands.

    `around`: the panes, in order of time, whose predictions may be of its impressions; itself one
    of them. `most_values`: of each field, the others are one slice.
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
    """Return the summary of all their impressions, in whatever order they come."""
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
    """Return it with the most frequent values of each field, and the rest of them in one slice."""
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
    """Return it without its slices."""
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
    """Return which impressions are in each slice."""
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
    """Return the score of each id, NaN where there is none."""
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
    """A value of the table is not a summary that this version wrote."""


def pack(summary: PaneSummary) -> bytes:
    """Return a summary as bytes."""
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
    """Return what `pack` was given. Raises UnreadableSummary."""
    try:
        wire = _decoder.decode(blob)
    except msgspec.DecodeError as error:
        raise UnreadableSummary(f"summary: expected MessagePack, found {error}") from error
    if wire.format != _FORMAT:
        raise UnreadableSummary(f"summary: expected format {_FORMAT}, found {wire.format}")
    series = {
        alias: PaneScores(given, {(name, value): _tally(one) for name, value, one in tallies})
        for alias, (given, tallies) in wire.series.items()
    }
    seen = {(name, value): (shown, clicked) for name, value, shown, clicked in wire.seen}
    return PaneSummary(wire.sample, seen, series)


def _wire(one: Tally) -> _WireTally:
    return _WireTally(one.keys.astype("<i4").tobytes(), one.counts.tobytes(), one.sums)


def _tally(wire: _WireTally) -> Tally:
    keys = np.frombuffer(wire.keys, "<i4").astype(np.int64)
    return Tally(keys, np.frombuffer(wire.counts, "<i8"), *wire.sums)
