"""Codec of scores: the probabilities that a learner gave impressions before learning from them.

One message of the topic `scores.<model>` is one batch, an Arrow IPC stream that any tool can read.
A learner that was killed may score an impression twice; readers use the first score.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.ingest.events.contract import LATEST_MS
from headrace.ingest.examples.arrow_batch import UnreadableBatch, open_batch
from headrace.ingest.examples.batch import Examples

_SCHEMA = pa.schema(
    [
        pa.field("impression_id", pa.string(), nullable=False),
        pa.field("request_id", pa.string()),
        pa.field("event_ms", pa.int64(), nullable=False),
        pa.field("score", pa.float64(), nullable=False),
    ]
)
_TYPES = {field.name: (field.type,) for field in _SCHEMA}


class UnreadableScores(ValueError):
    """A message of the scores topic is not what `pack` writes."""


@dataclass(frozen=True, slots=True)
class Scores:
    """A batch of n scores, in the order they were made."""

    impression_ids: pa.StringArray  # (n,)
    request_ids: pa.StringArray  # (n,) null where absent
    event_ms: npt.NDArray[np.int64]  # (n,) when the impression was shown
    scores: npt.NDArray[np.float64]  # (n,) probability of a click

    def __len__(self) -> int:
        return int(self.scores.shape[0])


def scores_of(examples: Examples, scores: npt.NDArray[np.float64]) -> Scores:
    """Return the scores, (n,), of n examples; without those that are NaN, of clicks."""
    scored = np.flatnonzero(~np.isnan(scores))
    return Scores(
        examples.impression_ids.take(scored),
        examples.request_ids.take(scored),
        examples.shown_ms[scored],
        scores[scored],
    )


def pack(scores: Scores) -> bytes:
    """Return the bytes of a batch."""
    batch = pa.record_batch(
        [scores.impression_ids, scores.request_ids, scores.event_ms, scores.scores],
        schema=_SCHEMA,
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def unpack(blob: bytes) -> Scores:
    """Return the batch in these bytes. Raises UnreadableScores."""
    try:
        batch = open_batch(blob).read(_TYPES)
    except UnreadableBatch as error:
        raise UnreadableScores(f"scores: {error}") from error
    event_ms, scores = batch["event_ms"], batch["score"]
    if batch["impression_id"].null_count or event_ms.null_count or scores.null_count:
        raise UnreadableScores("scores: expected an id, a time and a score each, got missing ones")
    found = Scores(
        batch["impression_id"], batch["request_id"], event_ms.to_numpy(), scores.to_numpy()
    )
    if not (((found.scores >= 0.0) & (found.scores <= 1.0)).all() and _in_time(found.event_ms)):
        raise UnreadableScores("scores: expected probabilities and times, got values out of range")
    return found


def _in_time(event_ms: npt.NDArray[np.int64]) -> bool:
    return not event_ms.size or (event_ms.min() >= 0 and event_ms.max() < LATEST_MS)
