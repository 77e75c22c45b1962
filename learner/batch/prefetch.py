"""Runs an iterator in threads, a few items ahead of its consumer, in an unchanged order.

Reading files, encoding columns and the kernels that learn all release the interpreter's lock. One
core therefore reads, others encode (`in_order`), and one learns.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_POLL_S = 0.2
"""Longest time until the thread notices that its consumer has left."""


class _Ended(NamedTuple):
    error: BaseException | None


class _Reader(Generic[Item]):
    def __init__(self, items: Iterator[Item], ahead: int) -> None:
        self._items = items
        self._queue: queue.Queue[Item | _Ended] = queue.Queue(ahead)
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._read, name="prefetch", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        error: BaseException | None = None
        try:
            for item in self._items:
                if not self._put(item):
                    return
        except BaseException as raised:  # noqa: BLE001 - the consumer raises it
            error = raised
        self._put(_Ended(error))

    def _put(self, item: Item | _Ended) -> bool:
        while not self._left.is_set():
            try:
                self._queue.put(item, timeout=_POLL_S)
            except queue.Full:
                continue
            return True
        return False

    def __iter__(self) -> Iterator[Item]:
        while not isinstance(item := self._queue.get(), _Ended):
            yield item
        if item.error is not None:
            raise item.error

    def close(self) -> None:
        self._left.set()
        self._thread.join()


@contextmanager
def read_ahead(items: Iterator[Item], ahead: int = 4) -> Iterator[Iterator[Item]]:
    """Yield an iterator of the same items; at most `ahead` of them wait. Raises what `items` does.

    The thread has ended when the context is left.
    """
    reader = _Reader(items, ahead)
    try:
        yield iter(reader)
    finally:
        reader.close()


def in_order(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int
) -> Iterator[Result]:
    """Yield the results for all items in their order, computed by threads. Raises what they do.

    At most two items a thread are ahead of the consumer.
    """
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads, "encode") as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for each in waiting:
                each.cancel()
