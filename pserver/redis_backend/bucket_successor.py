"""The buckets that a reshard fills, and the switch to them.

The new buckets have keys of their own beside those of the present ones (a generation). So the
present buckets serve and learn on while their content is copied. The switch is one write of
{model}:shape, from which every process learns the keys at its start. Processes that run find the
switch at a push or a lease and stop (`Resharded`). Servers, which only read, go on with the old
buckets until they start again; `remove_old` then removes these.

One reshard runs at a time: it holds {model}:reshard under a token, which ends by itself if the
process dies. The next one removes the buckets that it left, and copies again. A process that only
paused then finds that its buckets are no longer the planned ones (`pserver/bucket_generations.py`).
"""

import secrets
from collections.abc import Iterable, Mapping

from headrace.pserver.bucket_generations import TOKEN_MS, BucketGeneration
from headrace.pserver.errors import BucketExists, MissingBucket
from headrace.pserver.redis_backend.commands import RedisCommands
from headrace.pserver.redis_backend.lifecycle import ModelLifecycle, StoredShape
from headrace.pserver.redis_backend.row_io import BucketLayout
from headrace.pserver.rows.row_codec import FoldedRows, sub_hashes_for
from headrace.pserver.store import Shape


class BucketSuccessor:
    """The next generation of one model's buckets. Methods raise the kinds of StoreError."""

    def __init__(self, lifecycle: ModelLifecycle, calls: RedisCommands, buckets: int) -> None:
        self._lifecycle, self._calls = lifecycle, calls
        self.token = secrets.token_hex(8)
        before = lifecycle.finished()
        self.shape = Shape(calls.model, buckets, before.width, before.fingerprint, before.spec)
        had = before.buckets * before.sub_hashes
        self._sub_hashes = min(before.sub_hashes, sub_hashes_for(buckets, had))
        self._from = before.generations.current
        self._planned: BucketGeneration | None = None
        self._new = calls

    def begin(self) -> None:
        """Take the token, and remove what an interrupted reshard left.

        Raises BucketExists while another reshard runs, and ModelExists before `remove_old`.
        """
        key = self._calls.model_key("reshard")
        if not self._calls.one(key, "SET", key, self.token, "NX", "PX", TOKEN_MS):
            raise BucketExists(
                f"another reshard of {self._calls.model!r} is running, or was killed less than "
                f"{TOKEN_MS // 1000} s ago. Try again in {TOKEN_MS // 1000} s"
            )
        try:
            now = self._lifecycle.rewrite(self._plan, self.token)
            assert now.planned is not None
            self._planned, self._new = (
                now.planned,
                self._calls.of_generation(now.planned.generation),
            )
            for each in now.abandoned:
                self._lifecycle.remove(each)
        except BaseException:
            self.release()
            raise

    def load(
        self, bucket: int, version: int, marks: Mapping[str, int], chunks: Iterable[FoldedRows]
    ) -> None:
        """Fill a new bucket, as Store.load does. Raises BucketExists if the token is lost."""
        self._renew()
        layout = BucketLayout(self.shape.buckets, self._sub_hashes, self.shape.width)
        self._lifecycle.fill(self._new, layout, bucket, (version, marks, chunks))

    def switch(self) -> None:
        """Make the new buckets those of the model.

        Raises MissingBucket if one is missing, and BucketExists if another reshard began meanwhile.
        """
        self._renew()
        if missing := self._lifecycle.absent(self._new, self.shape.buckets):
            raise MissingBucket(f"bucket {missing[0]} of the reshard is missing: run it again")
        self._lifecycle.rewrite(self._switched, self.token)

    def release(self) -> None:
        """Give the token back."""
        self._calls.on_model("hold_reshard", ("reshard",), (self.token, 0))

    def _plan(self, before: StoredShape) -> StoredShape:
        self._lifecycle.check_complete(before)
        if before.generations.current != self._from:
            raise BucketExists(f"{self._calls.model!r} was resharded a moment ago: run it again")
        planned = before.generations.plan(self.shape.buckets, self._sub_hashes)
        return before.of_generations(planned)

    def _switched(self, before: StoredShape) -> StoredShape:
        self._lifecycle.check_complete(before)  # else the model is being removed
        return before.of_generations(before.generations.switch(self._planned))

    def _renew(self) -> None:
        if not self._calls.on_model("hold_reshard", ("reshard",), (self.token, TOKEN_MS)):
            raise self._lifecycle.overtaken()


def remove_old(lifecycle: ModelLifecycle) -> int:
    """Remove the buckets before the last reshard; return their number."""
    old = lifecycle.finished().superseded
    if old is None:
        return 0
    lifecycle.remove(old)

    def forget(stored: StoredShape) -> StoredShape:
        if stored.superseded != old:  # another process removed them, too
            return stored
        return stored.of_generations(stored.generations.without_superseded())

    lifecycle.rewrite(forget)
    return old.buckets
