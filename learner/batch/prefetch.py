"""Computes the items of an iterator in threads, a few ahead of their consumer, in the same order.

Reading files, encoding columns and the kernels that learn all release the interpreter's lock. One
core therefore reads, others encode (`in_order`), and one learns.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def read_ahead(items: Iterator[Item], ahead: int = 4) -> Iterator[Iterator[Item]]:
    """Yield an iterator of the same items; at most `ahead` of them wait. Raises what `items` does.

    The thread has ended when the context is left.
    """
    with ThreadPoolExecutor(1, "prefetch") as pool:
        waiting = deque(pool.submit(next, items, None) for _ in range(ahead))

        def read() -> Iterator[Item]:
            while (item := waiting.popleft().result()) is not None:
                waiting.append(pool.submit(next, items, None))
                yield item

        try:
            yield read()
        finally:
            pool.shutdown(cancel_futures=True)


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
            pool.shutdown(cancel_futures=True)
