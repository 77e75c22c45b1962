"""Labelled examples in columns: what the joiner writes and learners read.

One Kafka message is one batch of one partition, as an Arrow IPC stream. Columns, not rows, because
both sides are vectorized; Arrow, because any tool can read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa


class Kind(IntEnum):
    """What an example is, and so what it counts as."""

    SHOWN = 0
    """`immediate`: an impression as it is first seen. Label 0, counts as a show."""
    CLICKED = 1
    """`immediate`: its click, with the same ids. Label 1, counts as a click, not as a show."""
    CLOSED = 2
    """`window`: an impression whose window closed. Counts as a show, and as a click if label 1."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """Fields of n events as ids and numbers. Columns in the order of the spec's `FieldSet`."""

    ids: npt.NDArray[np.uint64]  # (n, singles)
    bag_ids: npt.NDArray[np.uint64]  # (total,) all bags' items, event by event, bag by bag
    bag_offsets: npt.NDArray[np.int32]  # (n * bags + 1,) event i, bag j: [i * bags + j]
    numbers: npt.NDArray[np.float32]  # (n, numbers)

    def __len__(self) -> int:
        return int(self.ids.shape[0])


@dataclass(frozen=True, slots=True)
class Examples:
    """A batch of n examples of one partition, in the order they are to be learned."""

    fingerprint: str
    """Of the spec's fields and label policy."""
    watermark_ms: int
    """Event time that the joiner had reached in this partition."""
    kinds: npt.NDArray[np.uint8]  # (n,) Kind
    labels: npt.NDArray[np.uint8]  # (n,) 0 or 1
    event_ms: npt.NDArray[np.int64]  # (n,) of the impression, or of the click if CLICKED
    shown_ms: npt.NDArray[np.int64]  # (n,) of the impression
    append_ms: npt.NDArray[np.int64]  # (n,) of the event that made the example
    impression_ids: pa.StringArray  # (n,)
    request_ids: pa.StringArray  # (n,) null where absent
    features: Encoded
    slices: dict[str, pa.Array]  # raw fields, by name, that evaluation slices by; each (n,)

    def __len__(self) -> int:
        return int(self.kinds.shape[0])
