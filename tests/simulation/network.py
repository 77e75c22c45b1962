"""Simulates the network between a process and the store: loss, delay, duplicates, dead callers.

A request may be lost before it takes effect, or its reply afterwards. The caller gets `Unreachable`
in both cases. A request or a duplicate of it may also be delayed, and arrive after its sender died
and another process took over. Before a call is sent and before its reply arrives, the process may
die, or pause while the world goes on (`pause`). A bucket that is silent answers nothing.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt

from headrace.learner.loop.exchange import DirectExchange
from headrace.pserver.errors import LostLease, MissingBucket, Unreachable
from headrace.pserver.rows.row_codec import StoredRows
from headrace.pserver.store import (
    BucketAnswer,
    Delete,
    Fold,
    LookResult,
    PollResult,
    Push,
    Store,
    Trim,
)
from tests.simulation.slow_link import SlowLink

if TYPE_CHECKING:
    from tests.simulation.world import World

_REMEMBERED = 4
"""Replies of a bucket that may be heard again."""
_PAUSES_A_CHUNK = 6
"""A bucket is read for long: much happens meanwhile."""

T = TypeVar("T")


class Crash(Exception):
    """The process dies here."""


class Late(NamedTuple):
    """A request that is still in the network."""

    kind: str
    call: Callable[[], object]


class Network:
    """Requests on their way."""

    def __init__(self, dice: random.Random, tally: Counter[str], *, slow: bool = False) -> None:
        """`slow`: links carry less than a round of pushes within a timeout."""
        self._dice, self._tally, self.slow = dice, tally, slow
        self.late: list[Late] = []
        self.silent: set[int] = set()
        """Buckets that do not answer."""

    def arrive(self) -> None:
        """Deliver one of the delayed requests, if there are any. Its answer is lost."""
        if not self.late:
            return
        late = self.late.pop(self._dice.randrange(len(self.late)))
        self._tally[f"{late.kind} arriving late"] += 1
        try:
            late.call()
        except MissingBucket:
            self._tally["requests late for a bucket that is lost"] += 1


class Connection:
    """The calls of a `Store` that processes make, through the weather."""

    def __init__(self, world: World) -> None:
        self._store, self._network, self._world = world.store, world.network, world
        self._polls: dict[int, list[PollResult]] = {}
        self._marks: dict[int, list[BucketAnswer]] = {}

    def _chance(self, probability: float, what: str) -> bool:
        if probability == 0.0 or self._world.dice.random() >= probability:
            return False
        self._world.tally[what] += 1
        return True

    def _request(self, kind: str, bucket: int, call: Callable[[], T]) -> T | Unreachable:
        """One request that changes something."""
        world, weather = self._world, self._world.weather
        world.pause()
        if bucket in self._network.silent:
            return Unreachable("simulated: the bucket is silent")
        if self._chance(weather.lost_request, "requests lost"):
            return Unreachable("simulated: request lost")
        if self._chance(weather.linger, "requests lingering"):
            self._network.late.append(Late(kind, call))
            if world.dice.random() < 0.5:
                return Unreachable("simulated: no answer in time")
        answer = call()
        world.pause()
        if self._chance(weather.lost_reply, "replies lost"):
            return Unreachable("simulated: reply lost")
        return answer

    def _one(
        self, kind: str, bucket: int, call: Callable[[], list[T | Unreachable]]
    ) -> T | Unreachable:
        answer = self._request(kind, bucket, call)
        return answer if isinstance(answer, Unreachable) else answer[0]

    def _heard(self, bucket: int, now: T | Unreachable, earlier: list[Any]) -> T | Unreachable:
        """One reply to a question: now's, an old one, or none."""
        weather = self._world.weather
        if bucket in self._network.silent:
            return Unreachable("simulated: the bucket is silent")
        if isinstance(now, Unreachable) or self._chance(weather.lost_reply, "replies lost"):
            return Unreachable("simulated: reply lost")
        if earlier and self._chance(weather.stale_reply, "replies out of date"):
            old: T = self._world.dice.choice(earlier)
            return old
        if weather.stale_reply:
            earlier.append(now)
            del earlier[:-_REMEMBERED]
        return now

    # ---------------------------------------------------------------- what learners call

    def marks(self, buckets: Sequence[int]) -> list[BucketAnswer | Unreachable]:
        """See Store."""
        self._world.pause()
        answers = self._store.marks(buckets)
        self._world.pause()
        heard: list[BucketAnswer | Unreachable] = []
        for bucket, answer in zip(buckets, answers, strict=True):
            earlier = self._marks.setdefault(bucket, [])
            heard.append(self._heard(bucket, answer, earlier))
        return heard

    def push(self, pushes: Sequence[Push]) -> list[BucketAnswer | Unreachable]:
        """See Store. Each push by itself: other nodes answer although one does not."""
        if self._network.slow:
            self._world.tally["rounds over a slow link"] += 1
            return SlowLink(pushes, self._push).round()
        return [self._push(push) for push in pushes]

    def _push(self, push: Push) -> BucketAnswer | Unreachable:
        full = self._chance(self._world.weather.out_of_memory, "pushes to a full server")
        send = self._push_to_full_server if full else self._store.push
        return self._one("pushes", push.bucket, partial(send, [push]))

    def _push_to_full_server(self, pushes: Sequence[Push]) -> list[BucketAnswer | Unreachable]:
        with self._store.at_memory_limit():
            return self._store.push(pushes)

    # ---------------------------------------------------------------- what replicas call

    def poll(self, after: Mapping[int, int], limit: int) -> list[PollResult | Unreachable]:
        """See Store."""
        self._world.pause()
        most = 1 if self._chance(self._world.weather.short_reply, "short replies") else limit
        answers = self._store.poll(after, most)
        self._world.pause()
        heard: list[PollResult | Unreachable] = []
        for bucket, answer in zip(after, answers, strict=True):
            earlier = self._polls.setdefault(bucket, [])
            heard.append(self._heard(bucket, answer, earlier))
        return heard

    def rows(self, bucket: int) -> Iterator[StoredRows]:
        """See Store."""
        self._world.pause()
        chunks = iter(self._store.rows(bucket))
        while (chunk := self._next_chunk(chunks)) is not None:
            for _ in range(_PAUSES_A_CHUNK):
                self._world.pause()
            lost = self._chance(self._world.weather.lost_request, "requests lost")
            if lost or bucket in self._network.silent:
                raise Unreachable("simulated: request lost")
            yield chunk

    def _next_chunk(self, chunks: Iterator[StoredRows]) -> StoredRows | None:
        """Read a chunk; the world may go on before and after, and with it the chunk's bucket."""
        stall = self._world.weather.stall_copying
        if self._chance(stall, "stalls before a chunk is read"):
            self._world.outlast()
        chunk = next(chunks, None)
        if chunk is not None and self._chance(stall, "stalls of who copies"):
            self._world.outlast()
        return chunk

    def look(
        self, wanted: Mapping[int, npt.NDArray[np.uint64]], after: Mapping[int, int], limit: int
    ) -> list[LookResult | Unreachable]:
        """See Store."""
        self._world.pause()
        answers = self._store.look(wanted, after, limit)
        return [self._heard(*each, []) for each in zip(wanted, answers, strict=True)]

    # ---------------------------------------------------------------- what keepers call

    def claim(self, bucket: int, keeper: str, lease_ms: int) -> bool:
        """See Store."""
        call = partial(self._store.claim, bucket, keeper, lease_ms)
        answer = self._request("claims", bucket, call)
        if isinstance(answer, Unreachable):
            raise answer
        return answer

    def release(self, bucket: int, keeper: str) -> None:
        """See Store."""
        answer = self._request("releases", bucket, partial(self._store.release, bucket, keeper))
        if isinstance(answer, Unreachable):
            raise answer

    def fold(self, folds: Sequence[Fold]) -> list[LostLease | Unreachable | None]:
        """See Store."""
        answers = [
            self._one("folds", fold.bucket, partial(self._store.fold, [fold])) for fold in folds
        ]
        if self._chance(self._world.weather.stall_after_fold, "stalls of a keeper that has folded"):
            self._world.stand_still()
        return answers

    def trim(self, trims: Sequence[Trim]) -> list[LostLease | Unreachable | None]:
        """See Store."""
        return [
            self._one("trims", trim.bucket, partial(self._store.trim, [trim])) for trim in trims
        ]

    def delete(self, deletes: Sequence[Delete]) -> list[LostLease | Unreachable | None]:
        """See Store."""
        return [
            self._one("deletions", each.bucket, partial(self._store.delete, [each]))
            for each in deletes
        ]

    def row_limit(self) -> int:
        """See Store. It is read again in 200 ms, so a lost reply changes nothing for long."""
        return self._store.row_limit()


def connect(world: World) -> Store:
    """Return the store as a new process sees it. Operators have other ways to it."""
    return cast("Store", Connection(world))


class SimulatedExchange:
    """Delays pushes: they take effect now, or when the answer is asked for, or after a crash."""

    def __init__(self, connection: Store, world: World) -> None:
        self._direct, self._world = DirectExchange(connection), world
        self._waiting: Sequence[Push] | None = None

    def send(self, pushes: Sequence[Push]) -> None:
        """See learner.loop.exchange.Exchange."""
        self._waiting = pushes
        if self._world.dice.random() < 0.5:
            self._deliver()

    def receive(self) -> list[BucketAnswer | Unreachable] | None:
        """See learner.loop.exchange.Exchange."""
        if self._world.dice.random() < self._world.weather.slow_answer:
            return None
        if self._waiting is not None:
            self._deliver()
        return self._direct.receive()

    def _deliver(self) -> None:
        assert self._waiting is not None
        waiting, self._waiting = self._waiting, None
        self._direct.send(waiting)
