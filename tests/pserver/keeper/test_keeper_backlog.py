"""A keeper that stalls is seen; a shard that does not answer is not taken for a stalled keeper."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from headrace.pserver.errors import Unreachable
from headrace.pserver.keeper.keeper_backlog import keeper_watches
from headrace.pserver.store import BucketAnswer, Store

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
        self.following, self.trimming = keeper_watches(cast("Keeper", keeper), cast("Store", store))

    def _marks(self, buckets: Iterable[int]) -> list[BucketAnswer | Unreachable]:
        return [
            Unreachable("down")
            if bucket in self.down
            else BucketAnswer(bucket, self.stored[bucket], b"", b"", {}, 0)
            for bucket in buckets
        ]


def test_a_keeper_that_read_all_logs_and_has_nothing_due_has_no_backlog() -> None:
    scene = Scene()
    assert not scene.following.behind()
    assert not scene.trimming.behind()


def test_entries_that_were_not_read_are_a_backlog_unless_their_shard_is_down() -> None:
    scene = Scene()
    scene.stored[1] = 6
    assert scene.following.behind()
    scene.down = {1}
    assert not scene.following.behind()


def test_due_entries_are_a_backlog_of_trimming_unless_their_shard_is_down() -> None:
    scene = Scene()
    scene.due = [0]
    assert scene.trimming.behind()
    scene.down = {0}
    assert not scene.trimming.behind()
