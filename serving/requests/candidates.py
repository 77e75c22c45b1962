"""The candidates of a request.

An answer only needs their encoding, which works column by column. Only the prediction log needs
candidates as events, one by one; it is written later, on another thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.ingest.events.contract import TIME
from headrace.ingest.features.encoder import Encoded, Encoder, Event

T = TypeVar("T")

ID = "impression_id"
REQUEST_ID = "request_id"
MOST_COUNTED = 20
"""Candidates of one request whose fields are counted. As a rule, all have the same fields."""


def some_of(rows: Sequence[T]) -> Sequence[T]:
    """Return at most MOST_COUNTED rows, evenly chosen."""
    return rows[:: -(-len(rows) // MOST_COUNTED)] if rows else rows


class Candidates(msgspec.Struct, frozen=True, eq=False):
    """A shared context and the fields of each candidate, decoded from JSON."""

    context: Event
    own: Sequence[Event]
    timestamp_ms: int | None = None
    """Time of the request. A time in the context or in a candidate takes precedence."""

    def __len__(self) -> int:
        return len(self.own)

    def at(self, places: Sequence[int]) -> Candidates:
        """Return the candidates at these places, in this order."""
        return msgspec.structs.replace(self, own=[self.own[place] for place in places])

    def only(self, now_ms: int) -> Event:
        """Return the only candidate as an event."""
        [own] = self.own
        return {TIME: self._common_ms(now_ms), **self.context, **own}

    def encode(self, encoder: Encoder, now_ms: int) -> Encoded:
        """Return ids and numbers. The context is encoded once.

        now_ms: time of candidates without a time of their own.
        """
        context = {TIME: self._common_ms(now_ms), **self.context}
        return encoder.encode_candidates(context, self.own)

    def times(self, now_ms: int) -> npt.NDArray[np.int64]:
        """Return the time of each candidate, shape (n,)."""
        common = self.context.get(TIME, self._common_ms(now_ms))
        return np.array([each.get(TIME, common) for each in self.own], np.int64)

    def names(self) -> Sequence[str | None]:
        """Return the impression id of each candidate; None if it has none."""
        return [each.get(ID) for each in self.own]  # type: ignore[misc]

    def present(self, sources: Sequence[str]) -> tuple[int, list[int]]:
        """Return a count of candidates, and how many of them have each raw field.

        In a large request, some candidates stand for all.
        """
        rows, common = some_of(self.own), self.context
        counts = []
        for source in sources:
            default = common.get(source)
            counts.append(sum(row.get(source, default) is not None for row in rows))
        return len(rows), counts

    def events(self, now_ms: int) -> Iterator[dict[str, object]]:
        """Yield each candidate as an event: its time, and the fields that the model reads."""
        context = {TIME: self._common_ms(now_ms), **self.context}
        for each in self.own:
            yield {**context, **each}

    def _common_ms(self, now_ms: int) -> int:
        return now_ms if self.timestamp_ms is None else self.timestamp_ms


class CheckedRequest(msgspec.Struct, frozen=True, eq=False):
    """A request that passed its checks."""

    candidates: Candidates
    request_id: str | None = None
    top_k: int | None = None
    """Length of the ranking; None: all candidates in request order."""
    max_age_ms: int | None = None
    """Refuse if a bucket of the model is older."""
    min_version: int | None = None
    """Refuse if the model's version is lower."""
    snapshot: str | None = None
    """Refuse unless this snapshot answers."""
    uncertainty: bool = False
    """Whether the answer includes the uncertainty of each score."""
    explain: bool = False
    """Whether the answer includes the parts of each score."""
    strict: bool = False
    """Whether to refuse fields that the model does not read."""
