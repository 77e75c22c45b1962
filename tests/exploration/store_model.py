"""Learners and a store of two buckets; and of one bucket with keepers and a reader.

A learner learns batches that count in all buckets, and pushes. Keepers fold and trim the bucket
under leases, and a reader follows its log. The rows of a bucket do not depend on other buckets, so
no model needs both. Faults: a partition moves while its old learner
goes on, a learner dies, a lease ends while its keeper only pauses, an answer is lost, a late copy
of a push, fold or trim, a failover that loses the last one or two writes of a bucket.

The product's: the fence of a push (`push_fence`), the cursors, the fence of a keeper
(`memory_store.refusal_of`), the chain of a log. Rows are the offsets that they contain.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from headrace.learner.loop.cursors import Cursors
from headrace.pserver.replica import log_chain
from headrace.pserver.store import BucketAnswer, PollResult
from tests.exploration.store_state import (
    BATCHES,
    SOURCE,
    Bucket,
    Flight,
    Follower,
    LearnerState,
    Offsets,
    State,
    arrived,
    changed,
    content_of,
    entries_of,
    folded,
    push_of,
    pushed,
    put,
    trimmed,
)


class StoreModel:
    """See the module."""

    def __init__(self, name: str, buckets: int, keepers: int) -> None:
        """keepers: 0 leaves out the reader, too."""
        self.name, self._buckets, self._keepers = name, buckets, keepers

    def start(self, faults: int) -> State:
        """See Model."""
        count = self._buckets
        return State(
            (Bucket(),) * count,
            ((),) * count,
            (_begun((Bucket(),) * count),),
            (Follower(),) * self._keepers,
            Follower() if self._keepers else None,
            frozenset(),
            (0,) * count,
            0,
            faults,
        )

    def broken(self, state: State) -> str:
        """See Model."""
        for place, bucket in enumerate(state.buckets):
            found, expected = content_of(bucket), tuple(range(bucket.mark))
            if found != expected:
                return f"bucket {place} contains {found}, and its mark is {bucket.mark}"
        reader, content = state.reader, content_of(state.buckets[0])
        if reader is None or reader.version < 0 or reader.rows == content:
            return ""
        if _followed(reader, state.buckets[0]) != reader:
            return ""
        return f"the reader has read the log, and sees {reader.rows}, not {content}"

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """See Model."""
        for request in state.late:
            yield f"late: {request}", arrived(state._replace(late=state.late - {request}), request)
        for place, learner in enumerate(state.learners):
            yield from _learner_steps(state, place, learner)
        for place, keeper in enumerate(state.keepers):
            if keeper not in state.keepers[:place]:
                yield from _keeper_steps(state, place, keeper)
        reader = state.reader and _followed(state.reader, state.buckets[0])
        if reader != state.reader:
            yield "reader follows", state._replace(reader=reader)
        if state.faults:
            yield from _faults(state._replace(faults=state.faults - 1))


# -------------------------------------------------------------------- learners


def _cursors_of(learner: LearnerState) -> Cursors:
    cursors = Cursors()
    cursors.gained(SOURCE, np.array(learner.acknowledged, np.int64))
    cursors._cursors[SOURCE][:] = learner.cursors
    return cursors


def _with(state: State, place: int, learner: LearnerState, cursors: Cursors) -> State:
    acknowledged, reached = cursors._acknowledged[SOURCE], cursors._cursors[SOURCE]
    moved = learner._replace(
        acknowledged=tuple(acknowledged.tolist()), cursors=tuple(reached.tolist())
    )
    return state._replace(learners=changed(state.learners, place, moved))


def _learner_steps(state: State, place: int, learner: LearnerState) -> Iterator[tuple[str, State]]:
    name = "learner" if learner.owns else "old learner"
    if learner.owns and learner.position < BATCHES:
        cursors, offset = _cursors_of(learner), learner.position
        active = cursors.active(SOURCE, offset).tolist()
        cursors.advance(SOURCE, offset + 1)
        pending = tuple(
            (*held, offset) if on else held
            for held, on in zip(learner.pending, active, strict=True)
        )
        learned = learner._replace(position=offset + 1, pending=pending)
        yield f"{name} learns: {offset}", _with(state, place, learned, cursors)
    for bucket in range(len(state.buckets)):
        yield from _push_steps(state, place, learner, bucket, name)


def _push_steps(
    state: State, place: int, learner: LearnerState, bucket: int, name: str
) -> Iterator[tuple[str, State]]:
    flight = learner.flights[bucket]
    cursors = _cursors_of(learner)
    if flight is None:
        marks = {SOURCE: state.buckets[bucket].mark}
        spans = cursors.spans(bucket)
        if spans:
            [(_, start, stop)] = [(span.source, span.start, span.stop) for span in spans]
            serial = state.sent[bucket] + 1
            flight = Flight(start, stop, serial, learner.pending[bucket])
            sent = learner._replace(
                flights=changed(learner.flights, bucket, flight),
                pending=changed(learner.pending, bucket, ()),
            )
            learners = changed(state.learners, place, sent)
            what = f"{name} sends: bucket {bucket} [{start}, {stop})"
            yield what, state._replace(learners=learners, sent=changed(state.sent, bucket, serial))
        if learner.owns and not cursors.agrees(bucket, marks):
            yield (
                f"{name} compares marks: bucket {bucket}",
                _discarded(state, place, learner, bucket),
            )
        return
    after = pushed(state, bucket, flight)
    yield f"{name} pushes: bucket {bucket}", _answered(after, place, learner, bucket, flight)
    if state.faults:
        less = state._replace(faults=state.faults - 1)
        copied = less._replace(late=less.late | {("push", bucket, flight)})
        yield (
            f"{name} pushes, a copy is late: bucket {bucket}",
            _answered(pushed(copied, bucket, flight), place, learner, bucket, flight),
        )
        yield f"{name} hears no answer: bucket {bucket}", pushed(less, bucket, flight)


def _answered(
    state: State, place: int, learner: LearnerState, bucket: int, flight: Flight
) -> State:
    found = state.buckets[bucket]
    answer = BucketAnswer(bucket, found.version, b"", b"", {SOURCE: found.mark}, 0)
    push = push_of(bucket, *flight[:3])
    landed = learner._replace(flights=changed(learner.flights, bucket, None))
    if not answer.covers(push.spans):
        return _discarded(state, place, landed, bucket)
    cursors = _cursors_of(learner)
    cursors.acknowledge(bucket, push.spans)
    return _with(state, place, landed, cursors)


def _discarded(state: State, place: int, learner: LearnerState, bucket: int) -> State:
    cursors = _cursors_of(learner)
    again = cursors.discard(bucket, {SOURCE: state.buckets[bucket].mark}, None)
    position = cursors.resume_at(SOURCE) if again else learner.position
    position = min(position, cursors.resume_at(SOURCE))
    left = learner._replace(
        position=min(learner.position, position), pending=changed(learner.pending, bucket, ())
    )
    return _with(state, place, left, cursors)


def _begun(buckets: tuple[Bucket, ...]) -> LearnerState:
    marks, count = tuple(bucket.mark for bucket in buckets), len(buckets)
    return LearnerState(min(marks), marks, marks, ((),) * count, (None,) * count)


# -------------------------------------------------------------------- keepers and the reader


def _followed(follower: Follower, bucket: Bucket) -> Follower:
    """Read the log, or copy the bucket again."""
    if follower.version >= 0:
        after = [e for e in bucket.log if e.version > follower.version]
        polled = PollResult(
            0, bucket.version, bucket.nonce, bucket.trimmed, tuple(entries_of(tuple(after)))
        )
        try:
            entries = log_chain.chain(follower.version, follower.nonce, polled)
        except log_chain.BrokenHistory:
            pass
        else:
            if not entries:
                return follower
            gains: Offsets = tuple(offset for entry in entries for offset in entry.blob)
            return follower._replace(
                version=entries[-1].version,
                nonce=entries[-1].nonce,
                rows=tuple(sorted([*follower.rows, *gains])),
            )
    rows = content_of(bucket)
    if rows is None:
        return follower
    return follower._replace(
        version=bucket.version, nonce=bucket.nonce, rows=rows, folded=-1, trimmed=bucket.trimmed
    )


def _keeper_steps(state: State, place: int, keeper: Follower) -> Iterator[tuple[str, State]]:
    bucket = state.buckets[0]
    if not keeper.token:
        if bucket.log and (not bucket.keeper or bucket.lease_ends):
            token = str(state.claims + 1)
            claimed = bucket._replace(keeper=token, lease_ends=False, folds=0)
            begun = _followed(Follower(), bucket)._replace(token=token)
            after = state._replace(claims=state.claims + 1)
            yield "keeper claims", _as_keeper(put(after, 0, claimed), place, begun)
        return
    followed = _followed(keeper, bucket)
    if followed != keeper:
        yield "keeper follows", _as_keeper(state, place, followed)
    if keeper.version >= 0 and bucket.log and keeper.folded != keeper.version:
        fold = keeper.token, keeper.folds + 1, keeper.version, keeper.nonce
        wrote = keeper._replace(folds=keeper.folds + 1, folded=keeper.version)
        yield from _kept(state, place, wrote, ("fold", fold, keeper.rows))
    if keeper.folded > keeper.trimmed and keeper.folded == keeper.version:
        fence = keeper.token, keeper.folds, keeper.version, keeper.nonce
        trim = *fence, keeper.folded, keeper.trimmed
        yield from _kept(state, place, keeper._replace(trimmed=keeper.folded), ("trim", trim))


def _kept(
    state: State, place: int, done: Follower, request: tuple[Any, ...]
) -> Iterator[tuple[str, State]]:
    """Fold or trim. A refused keeper lets go of the bucket."""
    name = f"keeper {request[0]}s"
    write = folded if request[0] == "fold" else trimmed
    after = write(state, *request[1:])
    if after is None:
        yield f"{name}, refused", _as_keeper(state, place, Follower())
        return
    kept = _as_keeper(after, place, done)
    yield name, kept
    if state.faults:
        late = kept.late | {request}
        yield f"{name}, a copy is late", kept._replace(faults=state.faults - 1, late=late)


def _as_keeper(state: State, place: int, now: Follower) -> State:
    return state._replace(keepers=tuple(sorted(changed(state.keepers, place, now))))


def _faults(less: State) -> Iterator[tuple[str, State]]:
    """Yield the faults that come by themselves; `less` has one fault less to come."""
    yield "learner dies", less._replace(learners=(_begun(less.buckets),))
    if len(less.learners) == 1:
        old = less.learners[0]._replace(owns=False)
        yield "partition moves", less._replace(learners=(_begun(less.buckets), old))
    if less.buckets[0].keeper and not less.buckets[0].lease_ends:
        ended = less.buckets[0]._replace(lease_ends=True)
        yield "lease ends", less._replace(buckets=changed(less.buckets, 0, ended))
    for place in range(len(less.buckets)):
        for lost in range(1, len(less.before[place]) + 1):
            bucket = less.before[place][-lost]
            yield (
                f"failover: bucket {place} loses {lost} writes",
                less._replace(
                    buckets=changed(less.buckets, place, bucket),
                    before=changed(less.before, place, ()),
                ),
            )
