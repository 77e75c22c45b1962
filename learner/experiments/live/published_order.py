"""Publishes the order in which a live experiment took batches, beside its history.

    NAME/front            the place up to which the order is published, and the number of chunks
    NAME/late/00000000    notes of late batches: partition, offset, and the event time of the key
    NAME/late/00000001 ...

The log alone does not decide where late batches are taken (`topic_source`). Without these records,
a runner that lost its folder would take them elsewhere, and its history would differ from the
published one. Up to the front, it takes what was taken before it, and nothing else: a batch behind
the front may have arrived after the save.

Chunks come first, then the front, then the history of a save. The front counts the chunks that
belong to it. A later runner writes over chunks of a kill in between.
"""

from collections.abc import Callable, Iterator, Mapping

import msgspec

from headrace.learner.experiments.live.topic_source import FirstPass, TopicPosition
from headrace.learner.experiments.published_history import FRONT, LATE

Note = tuple[int, int, int]


class _Front(msgspec.Struct, frozen=True):
    offsets: list[int]
    """First offset of each partition that was not taken."""
    reached_ms: list[int]
    """Event time that each partition reached."""
    chunks: int
    """Of notes."""


class PublishedOrder:
    """The published order of one experiment."""

    def __init__(self, records: Mapping[str, bytes] | None = None) -> None:
        """`records`: by the rest of the key behind `NAME/`."""
        published = dict(records or {})
        self._front = published.get(FRONT, b"")
        found = msgspec.json.decode(self._front, type=_Front) if self._front else None
        self._chunks = found.chunks if found is not None else 0
        self._late: dict[tuple[int, int], int] = {}
        for number in range(self._chunks):
            for partition, offset, event_ms in msgspec.json.decode(
                published[_late_key(number)], type=list[tuple[int, int, int]]
            ):
                self._late[partition, offset] = event_ms
        self._position = (
            TopicPosition(tuple(found.offsets), tuple(found.reached_ms)) if found else None
        )

    def at_least(self, known: FirstPass) -> FirstPass:
        """Return what is published if it goes on behind `known`, else `known`.

        A folder is behind if it was lost, or restored from a copy. It is ahead if its runner was
        killed between save and publication.
        """
        if self._position is None or sum(self._position.offsets) <= sum(known.front.offsets):
            return known
        return FirstPass(self._position, self._late)

    def publish(self, taken: FirstPass, send: Callable[[str, bytes], object]) -> None:
        """Send the records that the topic lacks, in their order."""
        for key, value in self._missing(taken):
            send(key, value)

    def _missing(self, taken: FirstPass) -> Iterator[tuple[str, bytes]]:
        notes = list(taken.late.items())[len(self._late) :]
        if notes:
            chunk: list[Note] = [(*batch, event_ms) for batch, event_ms in notes]
            yield _late_key(self._chunks), msgspec.json.encode(chunk)
            self._chunks += 1
            self._late |= notes
        offsets, reached_ms = map(list, taken.front)
        front = msgspec.json.encode(_Front(offsets, reached_ms, self._chunks))
        if front != self._front:
            yield FRONT, front
            self._front = front


def _late_key(number: int) -> str:
    return f"{LATE}{number:08}"
