"""Marks and cursors of each bucket in each source: the arithmetic behind exactly once.

Every bucket and source has two offsets. `acknowledged` is the known mark of the bucket: the `start`
of the next push. `cursor` is the end of what is applied or pending there. An example counts in a
bucket only at or beyond its cursor; earlier ones are in the bucket already. Normally all cursors of
a source are equal. They differ after a bucket refuses a push (another learner owned the source in
between, or its shard lost writes), or after a learner died between the answers of two buckets. Then
the examples are read again and each bucket takes only what it lacks.

A parked message is passed without being learned, and has a mark of its own (`marks`). The spans
of these marks go out with those of the offsets.

Pure bookkeeping: nothing here reads, sends or waits.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from headrace.learner.loop.marks.parked_cursors import ParkedCursors
from headrace.pserver.store import OffsetSpan


class Cursors:
    """Acknowledged offsets and cursors of all buckets, for all sources this learner has owned."""

    def __init__(self) -> None:
        self._acknowledged: dict[str, npt.NDArray[np.int64]] = {}  # source -> (buckets,)
        self._cursors: dict[str, npt.NDArray[np.int64]] = {}  # source -> (buckets,)
        self._lost: set[str] = set()  # revoked, but something is still pending
        self.parked = ParkedCursors()

    def gained(self, source: str, marks: npt.NDArray[np.int64]) -> None:
        """Start with a source at these marks, shape (buckets,).

        A bucket that still has something of this source pending keeps it: the answer to its push
        shows whether it may count.
        """
        self._lost.discard(source)
        if source not in self._cursors:
            self._acknowledged[source] = marks.copy()
            self._cursors[source] = marks.copy()
            return
        acknowledged, cursors = self._acknowledged[source], self._cursors[source]
        settled = acknowledged == cursors
        acknowledged[settled] = marks[settled]
        cursors[settled] = marks[settled]

    def lost(self, source: str) -> None:
        """The source was revoked: drop it as soon as nothing of it is pending."""
        self._lost.add(source)
        self.parked.lost(source)
        self._drop_lost()

    def _drop_lost(self) -> None:
        for source in list(self._lost):
            if np.array_equal(self._acknowledged[source], self._cursors[source]):
                del self._acknowledged[source], self._cursors[source]
                self._lost.discard(source)

    def active(self, source: str, offset: int) -> npt.NDArray[np.bool_]:
        """Return the buckets in which the examples at `offset` count; shape (buckets,)."""
        active: npt.NDArray[np.bool_] = self._cursors[source] <= offset
        return active

    def advance(self, source: str, stop: int) -> None:
        """Note that everything below `stop` is applied or pending in every bucket."""
        np.maximum(self._cursors[source], stop, out=self._cursors[source])

    def begun(self, source: str) -> bool:
        """Return whether every bucket has acknowledged something of the source."""
        return bool(self._acknowledged[source].all())

    def resume_at(self, source: str) -> int:
        """Return the first offset that some bucket still lacks."""
        return int(self._cursors[source].min())

    def spans(self, bucket: int) -> tuple[OffsetSpan, ...]:
        """Return the spans that a push of this bucket covers; empty if nothing is pending."""
        offsets = tuple(
            OffsetSpan(source, int(self._acknowledged[source][bucket]), int(cursors[bucket]))
            for source, cursors in self._cursors.items()
            if cursors[bucket] > self._acknowledged[source][bucket]
        )
        return offsets + self.parked.spans(bucket)

    def acknowledge(self, bucket: int, spans: Sequence[OffsetSpan]) -> None:
        """Note that the bucket has applied these spans."""
        for span in spans:
            if span.source in self._acknowledged:
                self._acknowledged[span.source][bucket] = span.stop
        self.parked.acknowledge(bucket, spans)
        self._drop_lost()

    def agrees(self, bucket: int, marks: Mapping[str, int]) -> bool:
        """Return whether the bucket's marks equal the acknowledged offsets of owned sources.

        If so, marks of parked messages with nothing pending are taken over.
        """
        offsets = all(
            marks.get(source, 0) == acknowledged[bucket]
            for source, acknowledged in self._acknowledged.items()
            if source not in self._lost
        )
        return offsets and self.parked.agrees(bucket, marks)

    def discard(
        self, bucket: int, marks: Mapping[str, int], sources: Iterable[str] | None
    ) -> list[str]:
        """Go back to the marks of these sources (None: of all), and drop all that is pending.

        Returns the sources whose cursor went back and whose examples must be read again.
        """
        sources = None if sources is None else list(sources)
        self.parked.discard(bucket, marks, sources)
        for source in list(self._acknowledged) if sources is None else sources:
            if source in self._acknowledged:
                self._acknowledged[source][bucket] = marks.get(source, 0)
        back = []
        for source, cursors in self._cursors.items():
            if cursors[bucket] > self._acknowledged[source][bucket]:
                back.append(source)
            cursors[bucket] = self._acknowledged[source][bucket]
        self._drop_lost()
        return back

    def undo(self, bucket: int, flying: Sequence[OffsetSpan]) -> list[str]:
        """Drop what is pending, but keep what is in flight to the bucket.

        Returns the sources whose examples must be read again.
        """
        self.parked.undo(bucket, flying)
        kept = {span.source: span.stop for span in flying}
        back = []
        for source, cursors in self._cursors.items():
            stop = kept.get(source, int(self._acknowledged[source][bucket]))
            if cursors[bucket] > stop:
                back.append(source)
                cursors[bucket] = stop
        self._drop_lost()
        return back
