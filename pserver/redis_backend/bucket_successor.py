"""The buckets that a reshard fills, and the switch to them.

The new buckets have keys of their own beside those of the present ones (a generation). So the
present buckets serve and learn on while their content is copied. The switch is one write of
{model}:shape, from which every process learns the keys at its start. Processes that run find the
switch at a push or a lease and stop (`Resharded`). Servers, which only read, go on with the old
buckets until they start again; `remove_old` then removes these.

One reshard runs at a time: it holds {model}:reshard under a token, which ends by itself if the
process dies. The next one removes the buckets that it left, and copies again.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from headrace.pserver.errors import BucketExists, MissingBucket, ModelExists
from headrace.pserver.redis_backend.lifecycle import (
    RESHARDED_FORMAT,
    BucketGeneration,
    ModelLifecycle,
)
from headrace.pserver.redis_backend.row_io import BucketLayout
from headrace.pserver.rows import sub_hashes_for
from headrace.pserver.store import Shape

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.pserver.redis_backend.commands import RedisCommands
    from headrace.pserver.rows import FoldedRows

_TOKEN_MS = 60_000
"""Life of the token. Each bucket renews it, and a bucket takes seconds."""


class BucketSuccessor:
    """The next generation of one model's buckets. Methods raise the kinds of StoreError."""

    def __init__(self, lifecycle: ModelLifecycle, calls: RedisCommands, buckets: int) -> None:
        self._lifecycle, self._calls = lifecycle, calls
        self._token = secrets.token_hex(8)
        self._key = calls.model_key("reshard")
        before = lifecycle.finished()
        self.shape = Shape(calls.model, buckets, before.width, before.fingerprint, before.spec)
        had = before.buckets * before.sub_hashes
        subs = min(before.sub_hashes, sub_hashes_for(buckets, had))
        self._planned = BucketGeneration(before.generation + 1, buckets, subs)
        self._new = calls.of_generation(before.generation + 1)

    def begin(self) -> None:
        """Take the token, and remove what an interrupted reshard left.

        Raises BucketExists while another reshard runs, and ModelExists before `remove_old`.
        """
        if not self._calls.one(self._key, "SET", self._key, self._token, "NX", "PX", _TOKEN_MS):
            raise BucketExists(
                f"another reshard of {self._calls.model!r} is running, or was killed less than "
                f"{_TOKEN_MS // 1000} s ago. Try again in {_TOKEN_MS // 1000} s"
            )
        try:
            self._plan()
        except BaseException:
            self.release()
            raise

    def load(
        self, bucket: int, version: int, marks: Mapping[str, int], chunks: Iterable[FoldedRows]
    ) -> None:
        """Fill a new bucket, as Store.load does. Raises BucketExists if the token is lost."""
        self._renew()
        width, planned = self.shape.width, self._planned
        layout = BucketLayout(planned.buckets, planned.sub_hashes, width)
        self._lifecycle.fill(self._new, layout, bucket, (version, marks, chunks))

    def switch(self) -> None:
        """Make the new buckets those of the model. Raises MissingBucket if one is missing."""
        self._renew()
        if missing := self._lifecycle.absent(self._new, self._planned.buckets):
            raise MissingBucket(f"bucket {missing[0]} of the reshard is missing: run it again")
        stored = self._lifecycle.finished()
        stored.superseded = BucketGeneration(stored.generation, stored.buckets, stored.sub_hashes)
        stored.format, stored.planned = RESHARDED_FORMAT, None
        stored.generation, stored.buckets, stored.sub_hashes = (
            self._planned.generation,
            self._planned.buckets,
            self._planned.sub_hashes,
        )
        self._lifecycle.write(stored)

    def release(self) -> None:
        """Give the token back."""
        if self._calls.one(self._key, "GET", self._key) == self._token.encode():
            self._calls.one(self._key, "DEL", self._key)

    def _plan(self) -> None:
        before = self._lifecycle.finished()
        if before.generation != self._planned.generation - 1:
            raise BucketExists(f"{self._calls.model!r} was resharded a moment ago: run it again")
        if before.superseded is not None:
            raise ModelExists(
                f"expected no buckets of an earlier reshard of {self._calls.model!r}, got "
                f"{before.superseded.buckets}: remove them with `headrace pserver reshard "
                "--remove-old`, once every process has started again"
            )
        self._lifecycle.remove(before.planned)
        before.planned = self._planned
        self._lifecycle.write(before)

    def _renew(self) -> None:
        if self._calls.one(self._key, "GET", self._key) != self._token.encode():
            raise BucketExists(
                f"another reshard of {self._calls.model!r} has begun, because this one took more "
                f"than {_TOKEN_MS // 1000} s for a bucket"
            )
        self._calls.one(self._key, "SET", self._key, self._token, "XX", "PX", _TOKEN_MS)


def remove_old(lifecycle: ModelLifecycle) -> int:
    """Remove the buckets before the last reshard; return their number."""
    stored = lifecycle.finished()
    old = stored.superseded
    if old is None:
        return 0
    lifecycle.remove(old)
    stored.superseded = None
    lifecycle.write(stored)
    return old.buckets
