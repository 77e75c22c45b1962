"""Marks of parked messages that a learner knows, and how what is pending changes them.

Like the two offsets in `cursors`: the acknowledged value is the known mark of the bucket, and the
pending value is the mark after what is applied or pending there. A push of the bucket has the spans
from one to the other. Pure bookkeeping.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from headrace.learner.loop.marks.parked_marks import (
    ParkedCause,
    ParkedMessage,
    is_parked_mark,
    parked_mark,
    parked_messages,
    parked_place,
    parked_request,
    parked_value,
)
from headrace.pserver.store import BucketAnswer, OffsetSpan


class ParkedCursors:
    """Acknowledged and pending values of the marks of parked messages, by bucket."""

    def __init__(self) -> None:
        self._acknowledged: defaultdict[int, dict[str, int]] = defaultdict(dict)
        self._pending: defaultdict[int, dict[str, int]] = defaultdict(dict)
        """Differ from the acknowledged values, unless something in flight changes these."""
        self._owned: set[str] = set()
        """Sources. Parked messages of an earlier topic belong to the owner of the partition."""
        self._listed: tuple[ParkedMessage, ...] | None = ()

    def gained(self, source: str, answers: Sequence[BucketAnswer]) -> None:
        """Start with a source, at the marks of all buckets.

        Marks with something pending stay: the answer to the push shows whether it may count.
        """
        self._owned.add(source)
        self._listed = None
        for answer in answers:
            self._adopt(answer.bucket, answer.marks, [source])

    def lost(self, source: str) -> None:
        """The source was revoked: drop its marks, except those with something pending."""
        self._owned.discard(source)
        self._listed = None
        self._drop_lost()

    def _drop_lost(self) -> None:
        for bucket, known in self._acknowledged.items():
            pending = self._pending[bucket]
            for name in [n for n in known if n not in pending and not self._owns(n)]:
                self._know(bucket, name, 0)

    def _owns(self, name: str) -> bool:
        return _covers(self._owned, name)

    def messages(self) -> tuple[ParkedMessage, ...]:
        """Return what is parked in the owned sources, with what is pending, in the order read."""
        if self._listed is None:
            self._listed = tuple(
                parked
                for parked in parked_messages(
                    {**self._acknowledged[bucket], **self._pending[bucket]}
                    for bucket in self._buckets()
                )
                if self._owns(parked.mark)
            )
        return self._listed

    def __contains__(self, place: tuple[str, int]) -> bool:
        """Return whether any bucket has parked the message at a source and offset."""
        name = parked_mark(*place)
        return any(self._value(bucket, name) for bucket in self._buckets())

    def active(self, source: str, offset: int, buckets: int) -> npt.NDArray[np.bool_]:
        """Return the buckets that have parked the message; shape (buckets,)."""
        name = parked_mark(source, offset)
        return np.array([self._value(bucket, name) > 0 for bucket in range(buckets)], np.bool_)

    def park(
        self,
        source: str,
        offset: int,
        examples: int,
        active: npt.NDArray[np.bool_],
        cause: ParkedCause = ParkedCause.UNKNOWN,
    ) -> None:
        """Note that these buckets pass the message without learning it."""
        value = parked_value(examples, cause=cause)
        for bucket in np.flatnonzero(active).tolist():
            self._move(bucket, parked_mark(source, offset), value)

    def cause(self, source: str, offset: int) -> ParkedCause:
        """Return the test that found a parked message suspect."""
        place = source, offset
        causes = (each.cause for each in self.messages() if (each.source, each.offset) == place)
        return next(causes, ParkedCause.UNKNOWN)

    def end(self, source: str, offset: int) -> None:
        """Note that a parked message is learned, or dropped, in every bucket that parked it."""
        name = parked_mark(source, offset)
        for bucket in self._buckets():
            if self._value(bucket, name):
                self._move(bucket, name, 0)

    def asked_everywhere(self, message: ParkedMessage) -> bool:
        """Return whether the mark of every bucket that parked a message has its request.

        If not, pass the request on to the others: then a mark that ends says by itself, from its
        last value, whether the message was learned or dropped.
        """
        everywhere = True
        for bucket in self._buckets():
            value = self._value(bucket, message.mark)
            if value and parked_request(value) < message.request:
                requested = parked_value(message.examples, message.request, message.cause)
                self._move(bucket, message.mark, requested)
            known = self._acknowledged[bucket].get(message.mark, 0)
            everywhere &= not value or parked_request(known) == message.request
        return everywhere

    def spans(self, bucket: int) -> tuple[OffsetSpan, ...]:
        """Return the spans that a push of this bucket has besides those of offsets."""
        known = self._acknowledged[bucket]
        return tuple(
            OffsetSpan(name, known.get(name, 0), value)
            for name, value in self._pending[bucket].items()
            if value != known.get(name, 0)
        )

    def acknowledge(self, bucket: int, spans: Sequence[OffsetSpan]) -> None:
        """Note that the bucket has applied these spans."""
        for span in spans:
            if is_parked_mark(span.source):
                self._know(bucket, span.source, span.stop)
        known, pending = self._acknowledged[bucket], self._pending[bucket]
        if pending:  # nothing is in flight now, so equal values are settled
            self._pending[bucket] = {n: v for n, v in pending.items() if v != known.get(n, 0)}
        self._drop_lost()

    def agrees(self, bucket: int, marks: Mapping[str, int]) -> bool:
        """Return whether the bucket's marks fit what is pending; take over the others.

        A mark without anything pending says all by itself, so nothing need be read again: an
        operator or another learner moved it, or a failover undid that.
        """
        known = self._acknowledged[bucket]
        if any(known.get(n, 0) != marks.get(n, 0) for n in self._pending[bucket] if self._owns(n)):
            return False
        self._adopt(bucket, marks, self._owned)
        return True

    def _adopt(self, bucket: int, marks: Mapping[str, int], sources: Collection[str]) -> None:
        known, pending = self._acknowledged[bucket], self._pending[bucket]
        found = {n: value for n, value in marks.items() if is_parked_mark(n)}
        if not found and not known:
            return
        for name in {*found, *known} - pending.keys():
            if _covers(sources, name):
                self._know(bucket, name, found.get(name, 0))

    def discard(
        self, bucket: int, marks: Mapping[str, int], sources: Collection[str] | None
    ) -> None:
        """Drop all that is pending, and go back to the marks of these sources (None: of all).

        The answer to a push has only the marks that the push names. If the bucket went back, the
        messages from its offset on are no longer parked, whether the push names them or not.
        """
        self._pending[bucket] = {}
        self._listed = None
        if sources is None:
            self._adopt(bucket, marks, self._owned)
        else:
            for name in filter(is_parked_mark, sources):
                self._know(bucket, name, marks.get(name, 0))
            for name in list(self._acknowledged[bucket]):
                source, offset = parked_place(name)
                if source in sources and offset >= marks.get(source, 0):
                    self._know(bucket, name, 0)
        self._drop_lost()

    def undo(self, bucket: int, flying: Sequence[OffsetSpan]) -> None:
        """Drop what is pending, but keep what is in flight to the bucket."""
        kept = {span.source: span.stop for span in flying if is_parked_mark(span.source)}
        if self._pending[bucket] or kept:
            self._pending[bucket] = kept
            self._listed = None
            self._drop_lost()

    def _buckets(self) -> set[int]:
        return self._acknowledged.keys() | self._pending.keys()

    def _value(self, bucket: int, name: str) -> int:
        return self._pending[bucket].get(name, self._acknowledged[bucket].get(name, 0))

    def _move(self, bucket: int, name: str, value: int) -> None:
        self._pending[bucket][name] = value
        self._listed = None

    def _know(self, bucket: int, name: str, value: int) -> None:
        known = self._acknowledged[bucket]
        if value:
            known[name] = value
        else:
            known.pop(name, None)
        self._listed = None


def _covers(sources: Collection[str], name: str) -> bool:
    """Return whether the mark of a parked message is in the partition of one of these sources."""
    partition = _partition(parked_place(name)[0])
    return any(_partition(source) == partition for source in sources)


def _partition(source: str) -> str:
    return source.rpartition("/")[2]
