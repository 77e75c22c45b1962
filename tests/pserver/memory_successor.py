"""Reshards a store in memory: the fake of `redis_backend.bucket_successor`.

It makes the same steps under the same rule (`bucket_generations`). Its token ends when the caller
takes it from the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.pserver.errors import BucketExists, MissingBucket

if TYPE_CHECKING:
    from headrace.pserver.bucket_generations import BucketGeneration, Generations
    from headrace.pserver.memory_store import BucketState, MemoryStore
    from headrace.pserver.rows.row_codec import FoldedRows


class MemorySuccessor:
    """The next generation of buckets. Methods raise the kinds of StoreError."""

    def __init__(self, store: MemoryStore, buckets: int, token: str) -> None:
        """token: of this reshard alone."""
        self._store, self._token = store, token
        self.shape = replace(store.shape(), buckets=buckets)
        self._planned: BucketGeneration | None = None

    def begin(self) -> None:
        """Take the token, and remove what an interrupted reshard left."""
        store = self._store
        if store.reshard_token is not None:
            raise BucketExists("another reshard is running")
        store.reshard_token = self._token
        before = store.generations
        planned = before.plan(self.shape.buckets, 1)
        self._reshape(before, planned)
        for each in planned.abandoned:
            store.of_generation.pop(each.generation, None)
        self._planned = planned.planned

    def load(
        self, bucket: int, version: int, marks: Mapping[str, int], chunks: Iterable[FoldedRows]
    ) -> None:
        """Fill a new bucket. Raises BucketExists if the token is lost."""
        self._check_token()
        state = self._store.new_state(version, marks)
        for rows in chunks:
            state.write(version, rows)
        self._new()[bucket] = state

    def switch(self) -> None:
        """Make the new buckets those of the model."""
        self._check_token()
        if missing := set(range(self.shape.buckets)) - self._new().keys():
            raise MissingBucket(f"bucket {min(missing)} of the reshard is missing: run it again")
        before = self._store.generations
        self._reshape(before, before.switch(self._planned))

    def release(self) -> None:
        """Give the token back."""
        if self._store.reshard_token == self._token:
            self._store.reshard_token = None

    def _new(self) -> dict[int, BucketState]:
        assert self._planned is not None
        return self._store.of_generation.setdefault(self._planned.generation, {})

    def _check_token(self) -> None:
        if self._store.reshard_token != self._token:
            raise BucketExists("another reshard has begun")

    def _reshape(self, before: Generations, now: Generations) -> None:
        if not self._store.reshape(before, now, self._token):
            raise BucketExists("another reshard has begun")


def remove_old(store: MemoryStore) -> int:
    """Remove the buckets before the last reshard; return their number."""
    before = store.generations
    if before.superseded is None:
        return 0
    store.of_generation.pop(before.superseded.generation, None)
    store.reshape(before, before.without_superseded())
    return before.superseded.buckets
