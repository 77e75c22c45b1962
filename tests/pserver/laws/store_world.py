"""A store that can be broken, and short queries for its laws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from headrace.pserver.errors import LostLease
from headrace.pserver.replica.replica import Replica
from headrace.pserver.rows.row_codec import FoldedRows
from headrace.pserver.store import BucketAnswer, Fold, PollResult, Push, Shape, Store, Trim

if TYPE_CHECKING:
    from headrace.pserver.snapshots.resharding import Successor

BUCKETS = 4
LONG_MS = 60_000


class World(Protocol):
    """A store with a model in it, and the power to break it."""

    @property
    def store(self) -> Store: ...

    @property
    def shape(self) -> Shape: ...

    def checkpoint(self, bucket: int) -> Any:
        """Return the present state of a bucket."""

    def revert(self, bucket: int, checkpoint: Any) -> None:
        """Set a bucket back to a state, as a failover that lost writes."""

    def empty(self, bucket: int) -> None:
        """Lose a bucket."""

    def opened(self) -> Store:
        """Return the store as a process sees it that starts now."""

    def successor(self, buckets: int) -> Successor:
        """Return the buckets of a reshard."""

    def end_reshard_token(self) -> None:
        """Let the token of a reshard end, as after a minute."""

    def remove_old(self) -> int:
        """Remove the buckets before the last reshard; return their number."""


def answered(store: Store, *pushes: Push) -> list[BucketAnswer]:
    answers = store.push(pushes)
    assert all(isinstance(answer, BucketAnswer) for answer in answers)
    return [answer for answer in answers if isinstance(answer, BucketAnswer)]


def standing(store: Store, bucket: int) -> BucketAnswer:
    [answer] = store.marks([bucket])
    assert isinstance(answer, BucketAnswer)
    return answer


def polled(store: Store, bucket: int, after: int, limit: int = 100) -> PollResult:
    [answer] = store.poll({bucket: after}, limit)
    assert isinstance(answer, PollResult)
    return answer


def rows_at(world: World, bucket: int) -> tuple[Replica, FoldedRows]:
    replica = Replica(world.store, world.shape, buckets=[bucket])
    replica.poll()
    assert replica.complete
    return replica, replica.table.everything()


def refused(answers: Sequence[object]) -> bool:
    return all(isinstance(answer, LostLease) for answer in answers)


def fold_all(world: World, bucket: int, keeper: str, number: int = 1) -> Fold:
    replica, rows = rows_at(world, bucket)
    position = replica.position(bucket)
    fold = Fold(bucket, keeper, number, position.version, position.nonce, rows)
    [answer] = world.store.fold([fold])
    if answer is not None:
        raise answer
    return fold


def trim_through(fold: Fold, through: int) -> Trim:
    return Trim(fold.bucket, fold.keeper, fold.number, fold.version, fold.nonce, through, 0)
