"""The fence of a bucket: a push is applied only if its spans start at the bucket's marks.

To fence a process is to refuse its writes once they are outdated. A bucket has a mark for every
source: the first offset that it has not learned. A push names, for every source, the span of
offsets from which its deltas were learned. If every span starts at its mark, the store applies the
push and moves the marks to the ends of the spans, in one atomic step. Otherwise nothing changes.
A mark that a push moves back to 0 is deleted: the mark of a parked message lasts as long as the
message is parked.

This one rule covers a retry, a zombie process, a lost reply and a failover that loses writes. In
each case, the marks are not where the push starts, and the learner reads from the marks again.
*Refused:* a token or an epoch for each learner. It would stop a zombie, but would not say which
examples the bucket has.

`memory_store` applies the rule with these functions, and `redis_backend/functions.lua` contains it
in Lua. A keeper's writes have another fence: the lease and its number of folds (`store`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.pserver.store import Push


def passes_fence(push: Push, marks: Mapping[str, int]) -> bool:
    """Whether every span of a push starts at its mark. A source without a mark is at 0."""
    return all(marks.get(span.source, 0) == span.start for span in push.spans)


def marks_after(push: Push, marks: Mapping[str, int]) -> dict[str, int]:
    """Return the marks of a bucket that has applied a push; a mark at 0 is no longer stored."""
    moved = {**marks, **{span.source: span.stop for span in push.spans}}
    return {source: mark for source, mark in moved.items() if mark}
