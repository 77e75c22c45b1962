"""What stands between a process and the store: loss, delay, and the death of the caller.

A request may be lost before it has an effect, or its reply after it had one; either way the caller
learns nothing but `Unreachable`. A push may also stay under way while its sender dies, and take
effect long after somebody else took over. `Crash` may be raised at any call: it kills the process
that made it, at that very line.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pserver.errors import Unreachable

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pserver.errors import LostLease
    from pserver.memory_store import MemoryStore
    from pserver.rows import StoredRows
    from pserver.store import Answer, Fold, Polled, Push, Shape, Trim


class Crash(Exception):
    """The process dies here."""


@dataclass(slots=True)
class Weather:
    """Probabilities of faults for each call; all zero when the world comes to rest."""

    lost_request: float = 0.0
    lost_reply: float = 0.0
    stale_poll: float = 0.0
    crash: float = 0.0
    lingering_push: float = 0.0


class FaultyStore:
    """A `Store` as one process sees it, through bad weather."""

    def __init__(self, store: MemoryStore, weather: Weather, dice: random.Random) -> None:
        self._store, self._weather, self._dice = store, weather, dice
        self._earlier: dict[int, Polled] = {}

    def _chance(self, probability: float) -> bool:
        return self._dice.random() < probability

    def _call(self) -> None:
        if self._chance(self._weather.crash):
            raise Crash
        if self._chance(self._weather.lost_request):
            raise Unreachable("simulated: request lost")

    def create(self, shape: Shape) -> None:
        self._store.create(shape)

    def shape(self) -> Shape:
        return self._store.shape()

    def marks(self, buckets: Sequence[int]) -> list[Answer | Unreachable]:
        if self._chance(self._weather.crash):
            raise Crash
        return [
            Unreachable("simulated") if self._chance(self._weather.lost_request) else answer
            for answer in self._store.marks(buckets)
        ]

    def push(self, pushes: Sequence[Push]) -> list[Answer | Unreachable]:
        """Each push by itself: other nodes answer although one does not."""
        answers: list[Answer | Unreachable] = []
        for push in pushes:
            if self._chance(self._weather.crash):
                raise Crash
            if self._chance(self._weather.lost_request):
                answers.append(Unreachable("simulated: request lost"))
                continue
            [answer] = self._store.push([push])
            if self._chance(self._weather.lost_reply):
                answer = Unreachable("simulated: reply lost")
            answers.append(answer)
        return answers

    def poll(self, after: Mapping[int, int], limit: int) -> list[Polled | Unreachable]:
        if self._chance(self._weather.crash):
            raise Crash
        answers: list[Polled | Unreachable] = []
        for answer in self._store.poll(after, self._dice.randint(1, limit)):
            if isinstance(answer, Unreachable) or self._chance(self._weather.lost_request):
                answers.append(Unreachable("simulated: request lost"))
            elif answer.bucket in self._earlier and self._chance(self._weather.stale_poll):
                answers.append(self._earlier[answer.bucket])  # an old reply, again
            else:
                self._earlier[answer.bucket] = answer
                answers.append(answer)
        return answers

    def rows(self, bucket: int) -> Iterator[StoredRows]:
        self._call()
        for chunk in self._store.rows(bucket):
            yield chunk
            self._call()

    def claim(self, bucket: int, keeper: str, lease_ms: int) -> bool:
        self._call()
        return self._store.claim(bucket, keeper, lease_ms)

    def release(self, bucket: int, keeper: str) -> None:
        self._call()
        self._store.release(bucket, keeper)

    def fold(self, folds: Sequence[Fold]) -> list[LostLease | Unreachable | None]:
        return [self._keep(partial(self._store.fold, [fold])) for fold in folds]

    def trim(self, trims: Sequence[Trim]) -> list[LostLease | Unreachable | None]:
        return [self._keep(partial(self._store.trim, [trim])) for trim in trims]

    def _keep(
        self, call: Callable[[], list[LostLease | Unreachable | None]]
    ) -> LostLease | Unreachable | None:
        if self._chance(self._weather.crash):
            raise Crash
        if self._chance(self._weather.lost_request):
            return Unreachable("simulated: request lost")
        [answer] = call()
        if self._chance(self._weather.crash):
            raise Crash
        if self._chance(self._weather.lost_reply):
            return Unreachable("simulated: reply lost")
        return answer

    def close(self) -> None:
        pass


class SimulatedExchange:
    """Sends pushes; they take effect now, or when the answer is asked for, or after the crash."""

    def __init__(
        self,
        store: FaultyStore,
        weather: Weather,
        dice: random.Random,
        lingering: list[Push],
    ) -> None:
        self._store, self._weather, self._dice = store, weather, dice
        self._lingering = lingering
        self._waiting: Sequence[Push] | None = None
        self._answers: list[Answer | Unreachable] | None = None

    def send(self, pushes: Sequence[Push]) -> None:
        if self._dice.random() < self._weather.lingering_push:
            # a duplicate stays in the network and may arrive when its sender is long dead
            self._lingering.extend(pushes)
        if self._dice.random() < 0.5:
            self._answers = self._store.push(pushes)
        else:
            self._waiting = pushes

    def receive(self) -> list[Answer | Unreachable] | None:
        if self._dice.random() < 0.3:
            return None
        if self._waiting is not None:
            self._answers, self._waiting = self._store.push(self._waiting), None
        answers, self._answers = self._answers, None
        return answers
