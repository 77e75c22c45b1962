"""Made-up traffic: impressions of a few minutes, their clicks, scores and predictions, in batches
of several partitions, and the messages of rows that come of them.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.ingest.examples.batch import Examples, Kind
from headrace.ingest.features.encoder import Encoded
from headrace.ingest.features.fields import FieldSet
from headrace.learner.loop.scores import Scores
from headrace.serving.evaluation.messages import RowsBuilder, ServedPrediction, pack
from headrace.serving.evaluation.windows import WindowMetrics

BEGIN_MS = 1_700_000_040_000
"""A whole minute."""
DEVICES = ("phone", "desktop", "tablet", None)
ALIASES = ("champion", "challenger")
FIELDS = ("device",)
PARTITIONS = 2
SOURCES = tuple(
    f"{topic}/{partition}"
    for topic in ("examples", "scores", "predictions")
    for partition in range(PARTITIONS)
)

Batch = Examples | Scores | list[ServedPrediction]


@dataclass(slots=True)
class Traffic:
    """The written batches: (source, batch), in the order of each source."""

    batches: list[tuple[str, Batch]] = field(default_factory=list)

    @property
    def examples(self) -> list[Examples]:
        """All batches of examples."""
        return [batch for _, batch in self.batches if isinstance(batch, Examples)]

    @property
    def scores(self) -> list[Scores]:
        """All batches of scores."""
        return [batch for _, batch in self.batches if isinstance(batch, Scores)]

    @property
    def predictions(self) -> list[ServedPrediction]:
        """All predictions."""
        return [each for _, batch in self.batches if isinstance(batch, list) for each in batch]


def traffic(
    seed: int, minutes: int, requests_per_minute: int = 6, fields: FieldSet | None = None
) -> Traffic:
    """Draw a few minutes. Some scores come twice, as from a learner that was killed."""
    dice = random.Random(seed)
    made = Traffic()
    number = 0
    for minute in range(minutes):
        of: dict[str, list[tuple[int, str, str | None, str | None]]] = {}
        for _ in range(requests_per_minute):
            number += 1
            request = f"request-{seed}-{number}" if dice.random() < 0.9 else None
            time_ms = BEGIN_MS + minute * 60_000 + dice.randrange(60_000)
            for place in range(dice.randrange(1, 5)):
                name = f"impression-{seed}-{number}-{place}"
                partition = str(dice.randrange(PARTITIONS))
                row = (time_ms, name, request, dice.choice(DEVICES))
                of.setdefault(partition, []).append(row)
        for partition, rows in sorted(of.items()):
            made.batches += _of_minute(dice, partition, sorted(rows), minute, fields)
    return made


def _of_minute(
    dice: random.Random,
    partition: str,
    rows: list[tuple[int, str, str | None, str | None]],
    minute: int,
    fields: FieldSet | None,
) -> list[tuple[str, Batch]]:
    end_ms = BEGIN_MS + (minute + 1) * 60_000
    clicked = [row for row in rows if dice.random() < 0.4]
    kinds = [Kind.SHOWN] * len(rows) + [Kind.CLICKED] * len(clicked)
    examples = _examples(rows + clicked, kinds, end_ms, fields)
    scored = [(*row[:3], dice.random()) for row in rows if dice.random() < 0.95]
    again = [(*row[:3], dice.random()) for row in scored if dice.random() < 0.1]
    served = [
        ServedPrediction(
            impression_id=name,
            model="news",
            alias=alias,
            score=dice.choice([0.1, dice.random()]),
            time=time_ms - dice.randrange(30_000),
            request_id=request,
        )
        for time_ms, name, request, _ in rows
        for alias in ALIASES
        if dice.random() < 0.6
    ]
    ghost = ServedPrediction(f"ghost-{minute}-{partition}", "news", ALIASES[0], 0.5, end_ms - 1)
    return [
        (f"predictions/{partition}", [*served, ghost]),
        (f"examples/{partition}", examples),
        (f"scores/{partition}", _scores([*scored, *again])),
    ]


def _examples(
    rows: Sequence[tuple[int, str, str | None, str | None]],
    kinds: Sequence[Kind],
    watermark_ms: int,
    fields: FieldSet | None,
) -> Examples:
    count = len(rows)
    times = np.array([row[0] for row in rows], np.int64)
    singles = len(fields.singles) if fields else 1
    return Examples(
        fingerprint=fields.fingerprint if fields else "made-up",
        watermark_ms=watermark_ms,
        kinds=np.array(kinds, np.uint8),
        labels=np.array([kind == Kind.CLICKED for kind in kinds], np.uint8),
        event_ms=times,
        shown_ms=times,
        append_ms=times,
        impression_ids=pa.array([row[1] for row in rows], pa.string()),
        request_ids=pa.array([row[2] for row in rows], pa.string()),
        features=Encoded(
            np.zeros((count, singles), np.uint64),
            np.zeros(0, np.uint64),
            np.zeros(1, np.int32),
            np.zeros((count, 0), np.float32),
        ),
        slices={"device": pa.array([row[3] for row in rows], pa.string())},
    )


def _scores(rows: Sequence[tuple[int, str, str | None, float]]) -> Scores:
    return Scores(
        pa.array([row[1] for row in rows], pa.string()),
        pa.array([row[2] for row in rows], pa.string()),
        np.array([row[0] for row in rows], np.int64),
        np.array([row[3] for row in rows], np.float64),
    )


def messages(
    made: Traffic, seed: int, sample: float = 1.0, order: Sequence[int] | None = None
) -> list[bytes]:
    """Return messages of rows with a few batches each, and the times of their sources."""
    dice = random.Random(seed)
    gathering = RowsBuilder(FIELDS, sample)
    standings: dict[str, tuple[int | None, bool]] = {}
    packed = []
    now_ms = 1_800_000_000_000
    for place in order if order is not None else range(len(made.batches)):
        source, batch = made.batches[place]
        time_ms = add(gathering, batch)
        standings[source] = (time_ms, False)
        if dice.random() < 0.5:
            now_ms += 500
            packed.append(pack(gathering.take(now_ms, dict(standings))))
    packed.append(pack(gathering.take(now_ms + 500, dict(standings))))
    return packed


def add(gathering: RowsBuilder, batch: Batch) -> int:
    """Add a batch; return the event time that its source has reached."""
    if isinstance(batch, Examples):
        gathering.examples(batch)
        return batch.watermark_ms
    if isinstance(batch, Scores):
        gathering.scores(batch)
        return int(batch.event_ms.max(initial=BEGIN_MS))
    for each in batch:
        gathering.prediction(each)
    return max(each.time for each in batch)


def published_minute(
    model: str, begin_ms: int, scored: int, loss: float, **others: Any
) -> WindowMetrics:
    """Return a settled minute of the alias `production`, one click in ten impressions."""
    known: dict[str, Any] = dict.fromkeys(WindowMetrics.__struct_fields__)
    known |= {
        "model": model, "alias": "production", "window": "1m", "until": "settled", "slice": "all",
        "begin_ms": begin_ms, "end_ms": begin_ms + 60_000, "sample": 1.0, "shown": scored,
        "scored": scored, "clicks": scored // 10, "requests": 0, "compared": 0,
        "log_loss": loss if scored else None, "ctr_predicted": 0.12 if scored else None,
    }  # fmt: skip
    return WindowMetrics(**{**known, **others})
