"""A learner that parks messages, and the marks of two buckets.

The guard suspects a message at any time, and lets it pass at any later time. Faults: a partition
moves while its old learner goes on, a learner dies, an answer is lost, a late copy of a push, a
failover that loses the last write of a bucket.

The product's: what is parked or learned where (`learner.loop.parked_examples`), the cursors with
the marks of what is parked, the fence of a push.
"""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from headrace.learner.loop.cursors import Cursors
from headrace.learner.loop.guard.surprise import Suspect
from headrace.learner.loop.marks.parked_marks import parked_mark
from headrace.learner.loop.parked_examples import ParkedExamples
from headrace.pserver import push_fence
from headrace.pserver.store import BucketAnswer, OffsetSpan, Push
from tests.exploration.store_state import SOURCE, Offsets, changed

_BUCKETS = 2
Marks = tuple[tuple[str, int], ...]


class Bucket(NamedTuple):
    """One bucket."""

    marks: Marks = ()
    rows: Offsets = ()


class Flight(NamedTuple):
    """A push until it is answered."""

    spans: tuple[OffsetSpan, ...]
    gains: Offsets


class LearnerState(NamedTuple):
    """One learner, which reads the partition."""

    position: int
    acknowledged: tuple[int, ...] | None
    """None: it has lost the partition, and nothing of it is pending."""
    cursors: tuple[int, ...]
    known: tuple[Marks, ...]
    """Marks of parked messages, by bucket."""
    moved: tuple[Marks, ...]
    """Those with something pending, by bucket."""
    pending: tuple[Offsets, ...]
    flights: tuple[Flight | None, ...]
    owns: bool = True


class State(NamedTuple):
    """Everything."""

    buckets: tuple[Bucket, ...]
    before: tuple[Bucket | None, ...]
    """Of each bucket, the state that a failover brings back."""
    learners: tuple[LearnerState, ...]
    late: frozenset[tuple[int, Flight]]
    suspicions: int
    faults: int


class ParkedModel:
    """See the module."""

    def __init__(self, name: str, messages: int) -> None:
        self.name, self._messages = name, messages

    def start(self, faults: int) -> State:
        """See Model."""
        buckets = (Bucket(),) * _BUCKETS
        return State(buckets, (None,) * _BUCKETS, (_begun(buckets),), frozenset(), 1, faults)

    def broken(self, state: State) -> str:
        """See Model."""
        for place, (marks, rows) in enumerate(state.buckets):
            known = dict(marks)
            passed = range(known.get(SOURCE, 0))
            expected = tuple(at for at in passed if parked_mark(SOURCE, at) not in known)
            if rows != expected:
                return f"bucket {place} contains {rows}, and its marks are {known}"
        return ""

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """See Model."""
        for place, flight in state.late:
            left = state._replace(late=state.late - {(place, flight)})
            yield f"late: {flight}", _pushed(left, place, flight)
        for index, learner in enumerate(state.learners):
            if learner.owns:
                yield from _learns(state, index, learner, self._messages)
            for place in range(_BUCKETS):
                yield from _pushes(state, index, learner, place)
        if state.faults:
            yield from _faults(state._replace(faults=state.faults - 1))


# -------------------------------------------------------------------- the learner


def _cursors_of(learner: LearnerState) -> Cursors:
    cursors, parked = Cursors(), Cursors().parked
    if learner.acknowledged is not None:
        cursors._acknowledged[SOURCE] = np.array(learner.acknowledged, np.int64)
        cursors._cursors[SOURCE] = np.array(learner.cursors, np.int64)
        cursors._lost = set() if learner.owns else {SOURCE}
    for place in range(_BUCKETS):
        parked._acknowledged[place] = dict(learner.known[place])
        parked._pending[place] = dict(learner.moved[place])
    parked._owned, parked._listed = {SOURCE} if learner.owns else set(), None
    cursors.parked = parked
    return cursors


def _with(state: State, index: int, learner: LearnerState, cursors: Cursors) -> State:
    there = SOURCE in cursors._cursors
    parked = cursors.parked
    moved = learner._replace(
        acknowledged=tuple(cursors._acknowledged[SOURCE].tolist()) if there else None,
        cursors=tuple(cursors._cursors[SOURCE].tolist()) if there else (),
        known=tuple(_sorted(parked._acknowledged[place]) for place in range(_BUCKETS)),
        moved=tuple(_sorted(parked._pending[place]) for place in range(_BUCKETS)),
    )
    return state._replace(learners=changed(state.learners, index, moved))


def _sorted(marks: dict[str, int]) -> Marks:
    return tuple(sorted(marks.items()))


def _parked_examples(cursors: Cursors, verdict: Suspect | None) -> ParkedExamples:
    intake: Any = SimpleNamespace(
        active=lambda batch: cursors.active(batch.name, batch.offset),
        skip_past=lambda batch: cursors.advance(batch.name, batch.offset + 1),
    )
    guard: Any = SimpleNamespace(before=lambda *_: verdict)
    nothing: Any = None
    made = ParkedExamples(intake, cursors, guard, None, nothing, retry_interval_ms=0, limit=9)
    made._reasons = {(SOURCE, offset): "known" for offset in range(9)}  # logs nothing
    return made


def _batch(offset: int) -> Any:
    return SimpleNamespace(name=SOURCE, offset=offset, examples=(None,))


def _learns(
    state: State, index: int, learner: LearnerState, messages: int
) -> Iterator[tuple[str, State]]:
    at = learner.position
    if at < messages:
        for verdict in (None, Suspect("")) if state.suspicions else (None,):
            cursors = _cursors_of(learner)
            parked, batch = _parked_examples(cursors, verdict), _batch(at)
            found = parked.before(batch)
            taken, left = learner._replace(position=at + 1), state
            if found is None:
                taken = _learned(taken, parked, batch)
            else:
                parked.park([batch], [found])
                cursors.advance(SOURCE, at + 1)
                left = state._replace(suspicions=state.suspicions - (verdict is not None))
            yield f"{'parks' if found else 'learns'}: {at}", _with(left, index, taken, cursors)
    for message in _cursors_of(learner).parked.messages():
        cursors = _cursors_of(learner)
        parked = _parked_examples(cursors, None)
        taken = _learned(learner, parked, _batch(message.offset))
        yield f"learns what is parked: {message.offset}", _with(state, index, taken, cursors)


def _learned(learner: LearnerState, parked: ParkedExamples, batch: Any) -> LearnerState:
    active = parked.active(batch).tolist()
    parked.learned(batch)
    pending = tuple(
        (*held, batch.offset) if on else held
        for held, on in zip(learner.pending, active, strict=True)
    )
    return learner._replace(pending=pending)


def _pushes(
    state: State, index: int, learner: LearnerState, place: int
) -> Iterator[tuple[str, State]]:
    cursors, flight = _cursors_of(learner), learner.flights[place]
    marks = dict(state.buckets[place].marks)
    if flight is None:
        if spans := cursors.spans(place):
            flight = Flight(spans, learner.pending[place])
            sent = learner._replace(
                flights=changed(learner.flights, place, flight),
                pending=changed(learner.pending, place, ()),
            )
            learners = changed(state.learners, index, sent)
            yield f"sends: bucket {place} {spans}", state._replace(learners=learners)
        if learner.owns and not cursors.agrees(place, marks):
            yield (
                f"compares marks: bucket {place}",
                _discarded(state, index, learner, place, marks, None),
            )
        elif learner.owns and (now := _with(state, index, learner, cursors)) != state:
            yield f"takes marks over: bucket {place}", now
        return
    yield f"pushes: bucket {place}", _answered(_pushed(state, place, flight), index, place)
    if state.faults:
        less = state._replace(faults=state.faults - 1)
        copied = less._replace(late=less.late | {(place, flight)})
        after = _answered(_pushed(copied, place, flight), index, place)
        yield f"pushes, a copy is late: bucket {place}", after
        yield f"hears no answer: bucket {place}", _pushed(less, place, flight)


def _answered(state: State, index: int, place: int) -> State:
    learner = state.learners[index]
    flight = learner.flights[place]
    assert flight is not None
    landed = learner._replace(flights=changed(learner.flights, place, None))
    # the answer has the marks that the push names
    marks = dict(state.buckets[place].marks)
    named = {span.source: marks.get(span.source, 0) for span in flight.spans}
    if not BucketAnswer(place, 0, b"", b"", named, 0).covers(flight.spans):
        return _discarded(state, index, landed, place, named, list(named))
    cursors = _cursors_of(landed)
    cursors.acknowledge(place, flight.spans)
    return _with(state, index, landed, cursors)


def _discarded(
    state: State,
    index: int,
    learner: LearnerState,
    place: int,
    marks: dict[str, int],
    sources: list[str] | None,
) -> State:
    cursors = _cursors_of(learner)
    cursors.discard(place, marks, sources)
    position = learner.position
    if SOURCE in cursors._cursors:
        position = min(position, cursors.resume_at(SOURCE))
    left = learner._replace(position=position, pending=changed(learner.pending, place, ()))
    return _with(state, index, left, cursors)


def _begun(buckets: tuple[Bucket, ...]) -> LearnerState:
    marks = [dict(bucket.marks) for bucket in buckets]
    cursors, answers = Cursors(), [BucketAnswer(n, 0, b"", b"", m, 0) for n, m in enumerate(marks)]
    cursors.gained(SOURCE, np.array([each.get(SOURCE, 0) for each in marks], np.int64))
    cursors.parked.gained(SOURCE, answers)
    nothing = ((),) * _BUCKETS
    new = LearnerState(
        cursors.resume_at(SOURCE), (), (), nothing, nothing, nothing, (None,) * _BUCKETS
    )
    return _with(State(buckets, (), (new,), frozenset(), 0, 0), 0, new, cursors).learners[0]


# -------------------------------------------------------------------- the store, and faults


def _pushed(state: State, place: int, flight: Flight) -> State:
    bucket = state.buckets[place]
    push, marks = Push(place, flight.spans, b"", b""), dict(bucket.marks)
    if not push_fence.passes_fence(push, marks):
        return state
    rows = tuple(sorted([*bucket.rows, *flight.gains]))
    now = Bucket(_sorted(push_fence.marks_after(push, marks)), rows)
    return state._replace(
        buckets=changed(state.buckets, place, now), before=changed(state.before, place, bucket)
    )


def _faults(less: State) -> Iterator[tuple[str, State]]:
    yield "learner dies", less._replace(learners=(_begun(less.buckets),))
    if len(less.learners) == 1:
        old = less.learners[0]._replace(owns=False)
        cursors = _cursors_of(old)
        cursors.lost(SOURCE)
        old = _with(less._replace(learners=(old,)), 0, old, cursors).learners[0]
        yield "partition moves", less._replace(learners=(_begun(less.buckets), old))
    for place, bucket in enumerate(less.before):
        if bucket is not None:
            yield (
                f"failover: bucket {place} loses a write",
                less._replace(
                    buckets=changed(less.buckets, place, bucket),
                    before=changed(less.before, place, None),
                ),
            )
