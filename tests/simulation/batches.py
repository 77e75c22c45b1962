"""Batches of examples, the gains that their rows must get, and a model that produces these gains.

The update of a row is a count: whole numbers, exact in float32, so the truth is a sum that does not
depend on the order of additions. Each row also has a second float whose additions round. Two
replicas that add in different orders differ in its last bits.

With a wait, the joiner may make one example of an impression and its click, which has no time of
the click. There, every click counts at the second of its impression.
"""

import functools
import random
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.ingest.examples.batch import Examples, Kind, pack, unpack
from headrace.ingest.features.encoder import Encoded
from headrace.ingest.features.fields import FieldSet, parse_fields
from headrace.ingest.features.spec_text import SpecText
from headrace.learner.kernels.pending_deltas import PendingColumns
from headrace.pserver.rows.deltas import NEVER
from headrace.pserver.rows.table import RowTable, find_or_add

SPEC = """
[label]
policy = "immediate"
[fields.user]
number = 1
transform = "id"
[fields.item]
number = 2
transform = "id"
[fields.pair]
number = 3
transform = "cross"
of = ["user", "item"]
"""


@functools.cache
def fields_of(wait_s: float = 0.0) -> FieldSet:
    """Return the fields of the events, with a wait of the label policy."""
    text = SPEC.replace('"immediate"', f'"immediate"\nwait_s = {wait_s}')
    return parse_fields(tomllib.loads(text), SpecText(Path("simulation.toml"), text))


FIELDS = fields_of()
WIDTH = 2
_SINGLES = 3
MOST_EXAMPLES = 3
"""Of a batch that is drawn."""
_NO_BAGS = np.zeros(0, np.uint64)
_NO_OFFSETS = np.zeros(1, np.int32)

Total = tuple[int, int, int, int, int]
"""The exact sum of a row: shows, clicks, first and last second seen, first value."""
NOTHING: Total = (0, 0, NEVER, 0, 0)


def added(one: Total, other: Total) -> Total:
    """Return what both gained together."""
    return (
        one[0] + other[0],
        one[1] + other[1],
        min(one[2], other[2]),
        max(one[3], other[3]),
        one[4] + other[4],
    )


def summed(parts: Iterable[tuple[int, Total]]) -> dict[int, Total]:
    """Return what each row gained in all."""
    rows: dict[int, Total] = {}
    for row_id, total in parts:
        before = rows.get(row_id)
        rows[row_id] = total if before is None else added(before, total)
    return rows


def step_of(row_id: int) -> int:
    """Return the addition of one example to the first value of a row."""
    return 1 + (row_id & 3)


@functools.cache
def ids_of(user: int, item: int) -> tuple[int, int, int]:
    """Return the ids of one event's fields, spread over all buckets."""
    names = (f"u{user}", f"i{item}", f"{user}/{item}")
    bits = [random.Random(name).getrandbits(54) for name in names]
    return (bits[0] << 10 | 1, bits[1] << 10 | 2, bits[2] << 10 | 3)


@dataclass(frozen=True, slots=True)
class Batch:
    """One message, and what it comes to."""

    value: bytes
    gains: tuple[tuple[int, Total], ...]
    """(id, what it gains), an id as often as it occurs."""
    shown: tuple[str, ...]
    """Impressions that need a score."""
    poison: str = ""
    """One of POISONS: the batch must be quarantined, and gains nothing. Empty: it is learned."""

    @property
    def examples(self) -> int:
        """The number of examples that are learned."""
        return len(self.gains) // _SINGLES


POISONS = ("infinite", "huge")
"""A batch with infinite scores; one with infinite gains, which show before the next push."""


def draw_batch(name: str, now_ms: int, values: int, dice: random.Random, poison: str = "") -> Batch:
    """Return some examples of which no other batch has the impressions."""
    count = dice.randint(1, MOST_EXAMPLES)
    ids = [ids_of(dice.randrange(values), dice.randrange(values)) for _ in range(count)]
    kinds = [dice.choice((Kind.SHOWN, Kind.SHOWN, Kind.CLICKED)) for _ in range(count)]
    event_ms = [now_ms - dice.randint(0, 9000) for _ in range(count)]
    names = [f"{poison}{name}-{i}" for i in range(count)]
    if poison:
        kinds[0] = Kind.SHOWN  # clicks alone have no score to judge
    times = np.array(event_ms, np.int64)
    examples = Examples(
        fingerprint=FIELDS.fingerprint,
        watermark_ms=now_ms,
        kinds=np.array(kinds, np.uint8),
        labels=np.array([kind == Kind.CLICKED for kind in kinds], np.uint8),
        event_ms=times,
        shown_ms=times,
        append_ms=np.full(count, now_ms, np.int64),
        impression_ids=pa.array(names, pa.string()),
        request_ids=pa.nulls(count, pa.string()),
        features=Encoded(
            np.array(ids, np.uint64), _NO_BAGS, _NO_OFFSETS, np.zeros((count, 0), np.float32)
        ),
        slices={},
    )
    gains = []
    for i in range(0 if poison else count):
        shown, second = int(kinds[i] == Kind.SHOWN), event_ms[i] // 1000
        gains += [(r, (shown, 1 - shown, second, second, step_of(r))) for r in ids[i]]
    scored = tuple(n for n, kind in zip(names, kinds, strict=True) if kind == Kind.SHOWN)
    return Batch(pack(examples), tuple(gains), () if poison else scored, poison)


def batch_of(value: bytes, wait_s: float) -> Batch:
    """Return a message that a joiner wrote, and what it comes to."""
    examples = unpack(value, fields_of(wait_s))
    gains: list[tuple[int, Total]] = []
    scored: list[str] = []
    columns = examples.kinds.tolist(), seconds_of(examples, wait_s), examples.features.ids.tolist()
    names = examples.impression_ids.to_pylist()
    for kind, second, ids, name in zip(*columns, names, strict=True):
        shown, clicked = int(kind != Kind.CLICKED), int(kind != Kind.SHOWN)
        steps = shown + clicked
        gains += [(r, (shown, clicked, second, second, steps * step_of(r))) for r in ids]
        scored += [name] * shown
    return Batch(value, tuple(gains), tuple(scored))


def seconds_of(examples: Examples, wait_s: float) -> list[int]:
    """Return the second at which each example counts."""
    times = examples.shown_ms if wait_s else examples.event_ms
    seconds: list[int] = (times // 1000).tolist()
    return seconds


class CountingModel:
    """A model whose steps are whole numbers beside a small one that rounds."""

    def __init__(self, wait_s: float = 0.0) -> None:
        """wait_s: of the label policy."""
        self._wait_s = wait_s

    def rows_needed(self, examples: Examples) -> int:
        """See learner.loop.learner.Model."""
        return len(examples) * 2 * _SINGLES  # rare rows as well

    def learn(
        self,
        view: RowTable,
        gaining: PendingColumns,
        active: npt.NDArray[np.bool_],
        examples: Examples,
    ) -> npt.NDArray[np.float64]:
        """See learner.loop.learner.Model."""
        below = 65 - active.shape[0].bit_length()
        scores = np.full(len(examples), np.nan)
        names = examples.impression_ids.to_pylist()
        times = seconds_of(examples, self._wait_s), examples.shown_ms.tolist()
        for i, (kind, second, shown_ms) in enumerate(
            zip(examples.kinds.tolist(), *times, strict=True)
        ):
            if kind != Kind.CLICKED:
                scores[i] = np.inf if names[i].startswith("infinite") else 0.5
            extra = np.inf if names[i].startswith("huge") else 0.0
            counted = [True] * (kind != Kind.CLICKED) + [False] * (kind != Kind.SHOWN)
            clicked = kind == Kind.CLICKED
            for feature in examples.features.ids[i]:
                if not active[int(feature) >> below]:
                    continue
                row_id = self.row_of(
                    view, feature, names[i], clicked=clicked, shown_s=shown_ms // 1000
                )
                columns = view.columns
                place = find_or_add(columns, row_id)
                if not gaining.since[place]:
                    gaining.order[gaining.count[0]] = place
                    gaining.count[0] += 1
                columns.first_seen[place] = min(int(columns.first_seen[place]), second)
                gaining.since[place] = max(int(gaining.since[place]), NEVER - second)
                for side in (columns, gaining):
                    for shown in counted:
                        _count(side, place, shown, second, int(row_id))
                    side.values[place, 0] += np.float32(extra)
        return scores

    def predict(
        self,
        view: RowTable,
        features: Encoded,
        event_ms: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64] | None = None,
    ) -> npt.NDArray[np.float64]:
        """Return a score for each, as `learn` makes them."""
        del view, features, ends
        return np.full(event_ms.shape[0], 0.5)

    def row_of(
        self, view: RowTable, row_id: np.uint64, impression: str, *, clicked: bool, shown_s: int
    ) -> np.uint64:
        """Return the row in which an input counts: its own."""
        del view, impression, clicked, shown_s
        return row_id


def _count(side: object, place: int, shown: bool, second: int, row_id: int) -> None:
    (side.shows if shown else side.clicks)[place] += 1  # type: ignore[attr-defined]
    last = side.last_seen  # type: ignore[attr-defined]
    last[place] = max(int(last[place]), second)
    values = side.values  # type: ignore[attr-defined]
    values[place, 0] += np.float32(step_of(row_id))
    values[place, 1] += np.float32(0.1 * (1 + (row_id >> 10) % 7))
