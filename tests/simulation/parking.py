"""Parked messages of a world: a guard that suspects at random, operators, and what pushes learn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from headrace.ingest.examples.batch import Examples
from headrace.learner.kernels.pending_deltas import PendingDeltas
from headrace.learner.loop.guard.batch_guard import BatchGuard, Verdict
from headrace.learner.loop.guard.surprise import Suspect
from headrace.learner.loop.marks.parked_marks import (
    ParkedRequest,
    is_parked_mark,
    parked_messages,
    parked_place,
    parked_request,
)
from headrace.learner.loop.marks.parked_requests import ask
from headrace.learner.loop.merging import ExampleBatch
from headrace.pserver.store import OffsetSpan, Push
from tests.simulation.batches import Batch
from tests.simulation.ledger import Broken
from tests.simulation.topic import SimulatedTopic

if TYPE_CHECKING:
    from tests.simulation.world import World


class DoubtingGuard(BatchGuard):
    """A guard that suspects batches at random, before and after they are learned, in a storm."""

    def __init__(self, world: World) -> None:
        super().__init__(1000)
        self._world = world
        self._released: set[tuple[str, int]] = set()

    def _doubts(self) -> bool:
        stormy = self._world.weather == self._world.plan.weather
        return stormy and self._world.dice.random() < self._world.plan.parked

    def before(self, name: str, offset: int, examples: Examples) -> Verdict | None:
        """See BatchGuard."""
        verdict = super().before(name, offset, examples)
        if verdict is None and (name, offset) not in self._released and self._doubts():
            verdict = Suspect("simulated")
            self.skip_on_reread(name, offset, verdict)
        return verdict

    def accepts(
        self, batch: ExampleBatch, scores: npt.NDArray[np.float64], pending: PendingDeltas
    ) -> bool:
        """See BatchGuard."""
        if not super().accepts(batch, scores, pending):
            return False
        if (batch.name, batch.offset) in self._released or not self._doubts():
            return True
        self.skip_on_reread(batch.name, batch.offset, Suspect("simulated, as learned"))
        return False

    def reconsider(
        self, examples: Examples, scores: npt.NDArray[np.float64], *, new_round: bool
    ) -> bool:
        """See BatchGuard."""
        del examples, scores, new_round
        return not self._doubts()

    def learn_on_reread(self, name: str, offset: int) -> None:
        """See BatchGuard."""
        super().learn_on_reread(name, offset)
        self._released.add((name, offset))


class Operator:
    """Asks to learn or to drop what is parked, beside all learners."""

    def __init__(self, world: World) -> None:
        self._world = world

    def ask(self) -> None:
        """Ask about one parked message."""
        world = self._world
        if world.store.missing():
            return
        marks = [world.store.state(bucket).marks for bucket in range(world.plan.buckets)]
        if parked := parked_messages(marks):
            request = world.dice.choice((ParkedRequest.LEARN, ParkedRequest.DROP))
            world.tally[f"requests to {request.name.lower()} what is parked"] += 1
            ask(world.store, world.dice.choice(parked), request, world.nonce)


def drops(span: OffsetSpan) -> bool:
    """Return whether a span ends the mark of a parked message as an operator asked."""
    asked = is_parked_mark(span.source) and parked_request(span.start) is ParkedRequest.DROP
    return asked and not span.stop


def learned_by(push: Push, topic: SimulatedTopic) -> list[Batch]:
    """Return the batches that a push learns: those it covers, without those that it parks."""
    parked = [span for span in push.spans if is_parked_mark(span.source)]
    learned = [
        batch for span in push.spans for batch in topic.covered(span.source, span.start, span.stop)
    ]
    for span in parked:
        batch = topic.batch_at(*parked_place(span.source))
        if not span.start:
            if batch not in learned:
                raise Broken(f"a push of {push.spans} parks what it does not cover")
            learned.remove(batch)
        elif not span.stop and not drops(span):
            learned.append(batch)
    return learned
