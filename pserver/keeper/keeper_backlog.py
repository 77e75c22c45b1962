"""Compares a keeper's work with the logs of its buckets, for the liveness probe of its process.

A keeper follows logs and trims them. Each can stall alone: a replica that follows does not show
that folds arrive. So there is one watch for each. Buckets whose shard does not answer count as no
backlog, because a restart of the keeper would not bring the shard back.
"""

from __future__ import annotations

from headrace.pserver.errors import StoreError, Unreachable
from headrace.pserver.keeper.keeper import Keeper
from headrace.pserver.store import Store
from headrace.runtime.health import ProcessHealth


def watch_keeper(health: ProcessHealth, keeper: Keeper, store: Store) -> None:
    """Watch that the keeper follows the logs, and that it trims them."""

    def unread() -> bool:
        versions = keeper.versions()
        return any(version > versions[bucket] for bucket, version in _now(store, list(versions)))

    def untrimmed() -> bool:
        return bool(_now(store, keeper.folding()))

    health.watch(keeper.versions, unread)
    health.watch(keeper.trimmed, untrimmed)


def _now(store: Store, buckets: list[int]) -> list[tuple[int, int]]:
    """Return (bucket, version of its log) for the buckets that answer."""
    if not buckets:
        return []
    try:
        answers = store.marks(buckets)
    except StoreError:
        return []  # the keeper's own call raises it, and ends the process
    return [
        (answer.bucket, answer.version) for answer in answers if not isinstance(answer, Unreachable)
    ]
