"""Logs that are pushed to, folded and trimmed, and replicas that follow them."""

from typing import Any

from headrace.pserver.memory_store import MemoryStore
from headrace.pserver.replica.replica import Replica
from headrace.pserver.rows.table import RowTable
from headrace.pserver.store import Fold, Push, Trim
from tests.pserver.laws.new_stores import BUCKETS, SHAPE
from tests.pserver.rows.entries import Pusher


def following(store: Any, table: RowTable | None = None) -> Replica:
    replica = Replica(store, SHAPE, table)
    while not replica.complete:
        replica.poll()
    return replica


def pushed(store: MemoryStore, count: int, bucket: int = 0) -> list[Push]:
    pusher = Pusher(bucket, BUCKETS)
    pushes = [pusher.next() for _ in range(count)]
    store.push(pushes)
    return pushes


def fold_and_trim(store: MemoryStore, bucket: int, through: int | None) -> None:
    """Fold and trim as a keeper that starts now and ends at once."""
    store.claim(bucket, "k", 1000)
    replica = Replica(store, SHAPE, buckets=[bucket])
    replica.poll()
    position = replica.position(bucket)
    head = position.version, position.nonce
    rows = replica.table.everything()
    assert store.fold([Fold(bucket, "k", 1, *head, rows)]) == [None]
    if through is not None:
        assert store.trim([Trim(bucket, "k", 1, *head, through, 0)]) == [None]
    store.release(bucket, "k")
