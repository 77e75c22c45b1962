"""Codec of scores: the probabilities that a learner gave impressions before learning from them.

One message of the topic `scores.<model>` is one batch, an Arrow IPC stream that any tool can read.
A learner that was killed may score an impression twice; readers use the first score.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_SCHEMA = pa.schema(
    [
        pa.field("impression_id", pa.string(), nullable=False),
        pa.field("request_id", pa.string()),
        pa.field("event_ms", pa.int64(), nullable=False),
        pa.field("score", pa.float64(), nullable=False),
    ]
)


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
        with pa.ipc.open_stream(blob) as reader:
            schema = reader.schema
            table = reader.read_all().combine_chunks()
    except (pa.ArrowInvalid, OSError) as error:
        raise UnreadableScores(
            f"scores: expected an Arrow stream, got {len(blob)} bytes: {error}"
        ) from error
    if not schema.equals(_SCHEMA):
        raise UnreadableScores(
            f"scores: expected columns {_SCHEMA.names}, got {schema.names} of {schema.types}"
        )
    impression_ids, request_ids, event_ms, scores = (
        column.chunk(0) if column.num_chunks else pa.array([], column.type)
        for column in table.columns
    )
    return Scores(
        impression_ids,
        request_ids,
        event_ms.to_numpy(zero_copy_only=False),
        scores.to_numpy(zero_copy_only=False),
    )
