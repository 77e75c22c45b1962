"""A worker thread behind a queue that is bounded by bytes.

Observers of answers run beside the requests: the prediction log and the shadow models. A request
thread offers an item and never waits; an item that does not fit is refused, and the observer counts
it as dropped. The bound is in bytes, because requests differ in size by four orders of magnitude: a
bound on requests or candidates held 1.5 GB of 400 large requests.

The thread survives every exception of its handler. It logs the exception and hands the items to
`failed`, which counts them. Otherwise a single bad request would silently end an observer.
"""

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from typing import Generic, TypeVar

from headrace.runtime.counted_nouns import counted
from headrace.serving.models.prediction import ScoredRequest

log = logging.getLogger(__name__)

T = TypeVar("T")

_REQUEST_BYTES, _CANDIDATE_BYTES = 1_000, 200
"""Memory of a decoded request, and of a candidate's dictionary, id and score, besides the text."""


def memory_of(scored: ScoredRequest, body_bytes: int) -> int:
    """Estimate the memory of a scored request, from the size of its body."""
    return body_bytes + _REQUEST_BYTES + _CANDIDATE_BYTES * len(scored.names)


class BoundedWorker(ABC, Generic[T]):
    """Handles the items of a bounded queue, in a thread between `start` and `stop`."""

    def __init__(
        self,
        name: str,
        most_bytes: int,
        *,
        batch_items: int | None = None,
        drains: bool = False,
        join_s: float = 10.0,
    ) -> None:
        """Begin without a thread.

        batch_items: largest count of items that are handled together; None: all. drains: whether
        `stop` handles the queued items before it ends the thread.
        """
        self._most_bytes, self._batch_items, self._drains = most_bytes, batch_items, drains
        self._join_s = join_s
        self._waiting: deque[tuple[T, int]] = deque()
        self._bytes = 0  # of the queued items and of the batch in progress
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def handle(self, items: list[T]) -> None:
        """Handle the oldest items, on the worker's thread."""

    @abstractmethod
    def failed(self, item: T) -> None:
        """Count an item of a batch whose handling raised."""

    def close(self) -> None:
        """Release what the thread used, at its end."""

    def put(self, item: T, size_bytes: int) -> bool:
        """Queue an item; return False if it does not fit. Never waits.

        An empty queue takes an item of any size, because requests have a limit of their own.
        """
        with self._changed:
            full = self._bytes and self._bytes + size_bytes > self._most_bytes
            if full or self._ended:
                return False
            self._waiting.append((item, size_bytes))
            self._bytes += size_bytes
            self._changed.notify()
        return True

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait for it."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(self._join_s)

    def pause(self, seconds: float) -> bool:
        """Wait on the worker's thread; return True, at once, if the worker is to end."""
        with self._changed:
            return self._changed.wait_for(lambda: self._ended, seconds)

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            items = [item for item, _ in batch]
            try:
                self.handle(items)
            except Exception:
                requests = counted(len(items), "request")
                log.exception("%s: cannot handle %s", self._thread.name, requests)
                for item in items:
                    self.failed(item)
            with self._changed:
                self._bytes -= sum(size for _, size in batch)
        self.close()

    def _next(self) -> list[tuple[T, int]] | None:
        """Wait for items, and take the next batch; None: end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ended)
            if not self._waiting or (self._ended and not self._drains):
                return None
            count = min(self._batch_items or len(self._waiting), len(self._waiting))
            return [self._waiting.popleft() for _ in range(count)]
