"""What is to be scored, however it was written down.

A request may come as JSON objects or as tensors. Both can be encoded, which is all that an answer
needs, and column by column; as events, one by one, only the log of predictions wants them, and that
is written elsewhere and later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np

from headrace.ingest.events import TIME

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from headrace.ingest.features import Encoded, Encoder

    Event = Mapping[str, object]

ID = "impression_id"
REQUEST_ID = "request_id"


class Candidates(Protocol):
    """Some impressions that are about to be shown."""

    def __len__(self) -> int: ...

    def encode(self, encoder: Encoder, now_ms: int) -> Encoded:
        """Return ids and numbers; shown at `now_ms` unless they say otherwise."""

    def times(self, now_ms: int) -> npt.NDArray[np.int64]:
        """Return when each is shown, (n,)."""

    def names(self) -> Sequence[str | None]:
        """Return the impression id of each; None where it has none."""

    def events(self, now_ms: int) -> Iterator[dict[str, object]]:
        """Yield each as an event: its time, and the fields that the model reads."""


class EventCandidates(msgspec.Struct, frozen=True, eq=False):
    """One context that all share, and what each has of its own, as decoded from JSON."""

    context: Event
    own: Sequence[Event]
    timestamp_ms: int | None = None
    """When they are shown; the context's own time, or a candidate's, goes before it."""

    def __len__(self) -> int:
        return len(self.own)

    def only(self, now_ms: int) -> Event:
        """Return the event that the only candidate is, with all its fields and its time."""
        [own] = self.own
        return {TIME: self._common_ms(now_ms), **self.context, **own}

    def encode(self, encoder: Encoder, now_ms: int) -> Encoded:
        """Return ids and numbers; the context is encoded once."""
        context = {TIME: self._common_ms(now_ms), **self.context}
        return encoder.encode_candidates(context, self.own)

    def times(self, now_ms: int) -> npt.NDArray[np.int64]:
        """Return when each is shown, (n,)."""
        common = self.context.get(TIME, self._common_ms(now_ms))
        return np.array([each.get(TIME, common) for each in self.own], np.int64)

    def names(self) -> Sequence[str | None]:
        """Return the impression id of each."""
        return [each.get(ID) for each in self.own]  # type: ignore[misc]

    def events(self, now_ms: int) -> Iterator[dict[str, object]]:
        """Yield each as an event."""
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
    """None: all of them, in the order given; else so many, the likeliest first."""
    max_age_ms: int | None = None
    """No answer rather than one whose information is older."""
    min_version: int | None = None
    """No answer rather than one from an earlier version."""
    snapshot: str | None = None
    """No answer rather than one from anything but the snapshot of this name."""
    uncertainty: bool = False
    """Whether the answer says of each score how far one more outcome could move it."""
