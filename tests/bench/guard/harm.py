"""A learner of one stream with a fault in the middle: what its guard lets through.

Messages come live. The rows are pushed every `_PUSH` messages; a batch that the guard refuses after
it was learned undoes what came since the last push, as in the loop. When there is no alert, one
parked batch is tried after each live message, as in the loop, and after one that stays parked the
next one follows `_PAUSE` examples later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.ingest.examples.batch import Examples
from headrace.ingest.examples.splitting import part_of
from headrace.ingest.kafka.protocols import Source
from headrace.learner.loop.guard.batch_guard import BatchGuard
from headrace.learner.loop.guard.surprise import Suspect
from headrace.learner.loop.merging import ExampleBatch
from tests.bench.guard.arrivals import Arrival

if TYPE_CHECKING:
    from tests.bench.guard.guard_streams import BenchLearner, GuardStream


Floats = npt.NDArray[np.float64]

NONE, GUARD = "no guard", "guard"
_PUSH = 2
_PAUSE = 1_000
_SOURCE = Source("examples.guard", 0)


class Outcome(NamedTuple):
    """The results of one learner."""

    scores: Floats  # (n,) of the impressions, NaN where never scored
    first_refused: int
    """Message, of those since the first bad one, that was the first to be refused; -1: none."""
    refused: int
    """Examples parked or quarantined."""
    kept: int
    """Examples that are still parked at the end, or quarantined."""
    undone: int
    """Undos."""


class Harmed:
    """One learner of one stream, and its guard."""

    def __init__(self, learner: BenchLearner, guard: BatchGuard | None) -> None:
        self.learner, self.guard = learner, guard
        self._pushed = learner
        self._since: list[Examples] = []
        self.watched = True
        """Whether a batch may still be undone: copies for that cost time."""
        self.parked: list[Examples] = []
        self.refused = self.undone = 0
        self._pause = self._left = 0

    def take(self, offset: int, examples: Examples) -> Floats | None:
        """Learn a message; return its scores, or None if it was refused."""
        guard = self.guard
        if guard is not None:
            batch = ExampleBatch(_SOURCE, _SOURCE.topic, offset, examples)
            if guard.before(batch.name, offset, examples) is not None:
                self._park(examples)
                return None
            if guard.screens(batch.name, offset) and not guard.screen(
                batch, self.learner.predict(examples)
            ):
                self._park(examples)
                return None
        scores = self.learner.learn_batch(examples)
        if guard is not None:
            verdict = guard.judge(batch.name, offset, examples, scores, 0.0)
            if verdict is not None:
                assert isinstance(verdict, Suspect)
                self._undo()
                self._park(examples)
                return None
        self._since.append(examples)
        if len(self._since) == _PUSH:
            self._push()
        if guard is not None:
            self._reconsider(len(examples))
        return scores

    def _push(self) -> None:
        self.learner.push()
        self._since = []
        if self.guard is not None and self.watched:
            self._pushed = self.learner.copied()

    def _undo(self) -> None:
        self.undone += 1
        self.watched = False  # what follows is screened
        again, self._since = self._since, []
        self.learner = self._pushed.copied()
        for examples in again:
            self.learner.learn_batch(examples)
            self._since.append(examples)

    def _park(self, examples: Examples) -> None:
        self.refused += len(examples)
        self.parked.append(examples)

    def _reconsider(self, learned: int) -> None:
        guard = self.guard
        self._pause -= learned
        if guard is None or not self.parked or guard.alert or self._pause > 0:
            return
        if new_round := self._left <= 0:
            self._left = len(self.parked)
        self._left -= 1
        each = self.parked.pop(0)
        if guard.reconsider(each, self.learner.predict(each), new_round=new_round):
            self.learner.learn_batch(each)
            self._push()
        else:
            self.parked.append(each)
            self._pause = _PAUSE


def run(
    stream: GuardStream,
    before: BenchLearner,
    guard: BatchGuard | None,
    part: slice,
    arrival: Arrival,
) -> Outcome:
    """Return the outcome of learning a stream from its impression `part.start` on.

    before: learned what came earlier.
    """
    examples, which = stream.examples()
    begin = int(np.flatnonzero(which >= part.start)[0])
    examples, which = part_of(examples, begin, len(examples)), which[begin:]
    harmed = Harmed(before.copied(), guard)
    harmed._push()
    scores = np.full(len(stream.impressions), np.nan)
    first = -1
    for offset, (start, end) in enumerate(arrival.messages(len(examples))):
        harmed.watched = harmed.watched and bool(which[start] < part.stop)
        made = harmed.take(1_000_000 + offset, part_of(examples, start, end))
        if made is None:
            first = offset if first < 0 else first
            made = harmed.learner.predict(part_of(examples, start, end))
        shown = examples.kinds[start:end] != 1
        scores[which[start:end][shown]] = made[shown]
    kept = sum(map(len, harmed.parked))
    return Outcome(scores, first, harmed.refused, kept, harmed.undone)
