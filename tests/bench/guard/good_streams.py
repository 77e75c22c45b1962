"""Runs the guard over good streams, and counts the examples that it parks without need.

A stream is learned once, in messages of `_LEARNED`; the guard then gets the scores cut into the
messages of each arrival. A guard that parks nothing changes nothing, so this is what it sees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.ingest.examples.batch import Examples
from headrace.ingest.examples.splitting import part_of
from headrace.learner.loop.guard.batch_guard import BatchGuard, Unlearnable
from tests.bench.guard.arrivals import RESTART, Arrival
from tests.bench.guard.guard_streams import BenchLearner, GuardStream

_LEARNED = 512
_SOURCE = "examples.guard"


class Good(NamedTuple):
    """The verdicts on good streams; all in examples but `streams`."""

    streams: int = 0
    examples: int = 0
    parked: int = 0
    still_parked: int = 0
    given_up: int = 0

    def plus(self, other: Good) -> Good:
        """Return the sums of both."""
        return Good(*(a + b for a, b in zip(self, other, strict=True)))


def judged(stream: GuardStream, arrivals: Sequence[Arrival]) -> Iterator[tuple[Arrival, Good]]:
    """Yield the verdicts on a stream for each arrival."""
    examples, _ = stream.examples()
    learner, scores = BenchLearner(stream.spec), []
    for begin in range(0, len(examples), _LEARNED):
        batch = part_of(examples, begin, min(begin + _LEARNED, len(examples)))
        scores.append(learner.learn_batch(batch))
        learner.push()
    made = np.concatenate(scores)
    for arrival in arrivals:
        yield arrival, _arrived(stream, examples, made, learner, arrival)


def _arrived(
    stream: GuardStream,
    examples: Examples,
    scores: npt.NDArray[np.float64],
    learner: BenchLearner,
    arrival: Arrival,
) -> Good:
    guard = BatchGuard(stream.spec.fields.label.window_ms)
    parked, given_up = [], 0
    for offset, (begin, end) in enumerate(arrival.messages(len(examples))):
        if arrival.restarts and begin // RESTART != (begin - 1) // RESTART:
            guard = BatchGuard(stream.spec.fields.label.window_ms)
        batch, own = part_of(examples, begin, end), scores[begin:end]
        verdict = guard.before(_SOURCE, offset, batch)
        verdict = verdict or guard.judge(_SOURCE, offset, batch, own, 0.0)
        if isinstance(verdict, Unlearnable):
            given_up += len(batch)
        elif verdict is not None:
            parked.append(batch)
    left = [
        each
        for number, each in enumerate(parked)
        if not guard.reconsider(each, learner.predict(each), new_round=not number)
    ]
    counts = sum(map(len, parked)), sum(map(len, left))
    return Good(1, len(examples), *counts, given_up)
