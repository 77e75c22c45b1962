"""Measures the processor time of a learner's main thread by stage, without nested stages.

The functions of the stages are wrapped. A wrapper costs more than a function that is called a
million times, so only functions that run once a batch or once a push are stages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

from headrace.learner.kernels.pending_deltas import PendingDeltas
from headrace.learner.loop import example_queue as intake
from headrace.learner.loop import learner as loop
from headrace.learner.loop import pushes
from headrace.learner.loop.example_queue import ExampleQueue
from headrace.learner.loop.guard.batch_guard import BatchGuard
from headrace.learner.loop.pushes import Pushes
from headrace.pserver.replica.replica import Replica
from headrace.pserver.rows.table import RowTable

STAGES: tuple[tuple[Any, str, str], ...] = (
    (loop.Learner, "step", "rest of the loop"),
    (ExampleQueue, "poll", "waiting for Kafka and taking from it"),
    (intake, "unpack", "unpacking examples"),
    (BatchGuard, "before", "guarding"),
    (BatchGuard, "judge", "guarding"),
    (RowTable, "reserve", "growing tables"),
    (PendingDeltas, "reserve", "growing tables"),
    (loop.Learner, "_send_scores", "packing and sending scores"),
    (loop.Learner, "_seal", "waiting until Kafka has the scores"),
    (PendingDeltas, "largest", "looking for exploded deltas"),
    (PendingDeltas, "take", "taking out what rows gained"),
    (pushes, "pack", "packing pushes"),
    (Pushes, "send", "rest of pushing"),
    (Replica, "fold_own", "folding into the replica"),
    (Replica, "poll", "following logs"),
    (PendingDeltas, "refresh", "refreshing the view"),
    (loop.Learner, "_recheck", "comparing marks"),
    (loop.Learner, "_throttled", "comparing marks"),
)


class Stages:
    """Seconds by stage. Entered as it is, it measures nothing."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._within: list[float] = []

    def __enter__(self) -> Stages:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @contextmanager
    def watched(self) -> Iterator[Stages]:
        """Measure while this is open."""
        from headrace.learner.models.row_model import RowModel

        learning = [(kind, "learn", "learning") for kind in _with_learn(RowModel)]
        with ExitStack() as patched:
            for owner, name, stage in (*STAGES, *learning):
                wrapped = self._timed(getattr(owner, name), stage)
                patched.enter_context(patch.object(owner, name, wrapped))
            yield self

    def _timed(self, function: Callable[..., Any], stage: str) -> Callable[..., Any]:
        @wraps(function)
        def timed(*args: Any, **named: Any) -> Any:
            self._within.append(0.0)
            began = time.thread_time()
            try:
                return function(*args, **named)
            finally:
                spent = time.thread_time() - began
                own = spent - self._within.pop()
                self.seconds[stage] = self.seconds.get(stage, 0.0) + own
                if self._within:
                    self._within[-1] += spent

        return timed


def _with_learn(kind: type) -> list[type]:
    """Return the classes below this one that say themselves how they learn."""
    found = [kind] if "learn" in vars(kind) else []
    below: type
    for below in type.__subclasses__(kind):
        found += _with_learn(below)
    return found
