"""Lists what is parked, and sends an operator's request to the marks of the buckets.

The request moves the mark with a push without rows, so the fence decides between it and the push of
a learner: one of them is refused. The learner that owns the partition reads the request within a
second and obeys it, or once it starts. A bucket that has learned the message in the meantime has no
mark left, and is not asked.
"""

from collections.abc import Callable, Mapping

from headrace.learner.loop.marks.parked_marks import (
    ParkedMessage,
    ParkedRequest,
    parked_messages,
    parked_request,
)
from headrace.pserver.errors import Unreachable
from headrace.pserver.rows.deltas import EntryHeader, RowDeltas, pack
from headrace.pserver.store import OffsetSpan, Push, Store


def read_parked(store: Store) -> list[ParkedMessage]:
    """Return what is parked. Raises StoreError, also if a bucket does not answer."""
    answers = store.marks(range(store.shape().buckets))
    marks: list[Mapping[str, int]] = []
    for answer in answers:
        if isinstance(answer, Unreachable):
            raise answer
        marks.append(answer.marks)
    return parked_messages(marks)


def ask(
    store: Store,
    message: ParkedMessage,
    request: ParkedRequest,
    draw_nonce: Callable[[], bytes],
) -> int:
    """Ask the buckets that have parked a message to learn or drop it; return how many were asked.

    A request to drop replaces one to learn, but not the other way round. Raises Unreachable if a
    bucket does not answer; asking again is harmless.
    """
    width = store.shape().width
    blob = pack(EntryHeader(width, 0, 0, 0, []), RowDeltas.empty(width))
    pushes = []
    for answer in store.marks(range(store.shape().buckets)):
        if isinstance(answer, Unreachable):
            raise answer
        value = answer.marks.get(message.mark, 0)
        if value and parked_request(value) < request:
            requested = value - parked_request(value) + request
            span = OffsetSpan(message.mark, value, requested)
            pushes.append(Push(answer.bucket, (span,), draw_nonce(), blob))
    answers = store.push(pushes)
    for each in answers:
        if isinstance(each, Unreachable):
            raise each
    return sum(
        not isinstance(each, Unreachable) and each.covers(push.spans)
        for each, push in zip(answers, pushes, strict=True)
    )
