"""Sends a round of pushes to the store and collects its answers.

The learner sends a round, learns on, and asks for the answers in a later step. One round is under
way at a time. Two implementations:

    ThreadExchange   pushes from a thread of its own, so that the store works on one round while
                     the learner learns the next; kernels and sockets release the interpreter lock
    DirectExchange   pushes at once, in the caller's thread: for a store in this process
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Protocol

from headrace.pserver.errors import Unreachable

if TYPE_CHECKING:
    from headrace.pserver.store import BucketAnswer, Push, Store


class Exchange(Protocol):
    """Sends rounds of pushes; one round is under way at a time."""

    def send(self, pushes: Sequence[Push]) -> None:
        """Begin a round. No other round is under way."""

    def receive(self) -> list[BucketAnswer | Unreachable] | None:
        """Return the answers in the order sent, or None while they are awaited."""


class DirectExchange:
    """Pushes at once; the answers are ready when `send` returns."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._answers: list[BucketAnswer | Unreachable] | None = None

    def send(self, pushes: Sequence[Push]) -> None:
        """Push now."""
        self._answers = self._store.push(pushes)

    def receive(self) -> list[BucketAnswer | Unreachable] | None:
        """Return the answers of the last round, once."""
        answers, self._answers = self._answers, None
        return answers


class ThreadExchange:
    """Pushes from a thread of its own, over a store connection of its own."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="push")
        self._round: Future[list[BucketAnswer | Unreachable]] | None = None

    def send(self, pushes: Sequence[Push]) -> None:
        """Begin a round in the thread."""
        self._round = self._pool.submit(self._store.push, pushes)

    def receive(self) -> list[BucketAnswer | Unreachable] | None:
        """Return the answers of the round, or None while they are awaited."""
        if self._round is None or not self._round.done():
            return None
        answers, self._round = self._round.result(), None
        return answers

    def close(self) -> None:
        """Wait for the round under way, then end the thread."""
        if self._round is not None:
            wait([self._round])
        self._pool.shutdown()
