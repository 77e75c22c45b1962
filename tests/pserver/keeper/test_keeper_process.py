"""A keeper that stalls is seen; a shard that does not answer is not taken for a stalled keeper."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from headrace.pserver.errors import Unreachable
from headrace.pserver.keeper.process import watch_keeper
from headrace.pserver.store import BucketAnswer, Store
from headrace.runtime.health import ProcessHealth

if TYPE_CHECKING:
    from headrace.pserver.keeper.keeper import Keeper


class Scene:
    """A keeper at some versions, and a store at others."""

    def __init__(self) -> None:
        self.read, self.due, self.stored = {0: 5, 1: 5}, list[int](), {0: 5, 1: 5}
        self.down: set[int] = set()
        keeper = SimpleNamespace(
            versions=lambda: dict(self.read), trimmed=dict, folding=lambda: self.due
        )
        store = SimpleNamespace(marks=self._marks)
        self.now_s = 0.0
        self.health = ProcessHealth(1.0, lambda: self.now_s)
        watch_keeper(self.health, cast("Keeper", keeper), cast("Store", store))

    def stalled(self) -> bool:
        """Whether the keeper counts as stalled after two seconds without progress."""
        self.now_s += 2.0
        self.health.stepped()
        return bool(self.health.why_not_live())

    def _marks(self, buckets: Iterable[int]) -> list[BucketAnswer | Unreachable]:
        return [
            Unreachable("down")
            if bucket in self.down
            else BucketAnswer(bucket, self.stored[bucket], b"", b"", {}, 0)
            for bucket in buckets
        ]


def test_a_keeper_that_read_all_logs_and_has_nothing_due_is_not_stalled() -> None:
    scene = Scene()
    assert not scene.stalled()


def test_a_keeper_that_does_not_read_entries_is_stalled_unless_their_shard_is_down() -> None:
    scene = Scene()
    scene.stored[1] = 6
    assert scene.stalled()
    scene.down = {1}
    assert not scene.stalled()


def test_a_keeper_that_does_not_trim_due_entries_is_stalled_unless_their_shard_is_down() -> None:
    scene = Scene()
    scene.due = [0]
    assert scene.stalled()
    scene.down = {0}
    assert not scene.stalled()
