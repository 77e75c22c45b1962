"""Laws of a reshard: one that paused changes nothing, and current buckets are never removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.pserver.errors import BucketExists, MissingBucket, ModelExists
from tests.pserver.laws.store_world import BUCKETS, World, standing

if TYPE_CHECKING:
    from headrace.pserver.snapshots.resharding import Successor


def fill(successor: Successor, *buckets: int) -> None:
    for bucket in buckets:
        successor.load(bucket, 7, {"t/0": bucket}, [])


def grown_buckets(world: World) -> list[int]:
    """Return the marks of the current buckets, each of which has its number as a mark."""
    store = world.opened()
    assert store.missing() == []
    buckets = range(store.shape().buckets)
    return [standing(store, bucket).marks["t/0"] for bucket in buckets]


class ReshardLaws:
    """The laws of a reshard, a part of the laws of a store."""

    def test_a_paused_switch_is_refused_once_another_reshard_began(self, world: World) -> None:
        paused, next_one = world.successor(2 * BUCKETS), world.successor(2 * BUCKETS)
        paused.begin()
        fill(paused, *range(2 * BUCKETS))
        world.end_reshard_token()
        refused = (paused.switch, lambda: fill(paused, 0))
        for call in refused:
            with pytest.raises(BucketExists, match="another reshard"):
                call()
        next_one.begin()
        fill(next_one, 0)
        for call in refused:
            with pytest.raises(BucketExists, match="another reshard"):
                call()
        paused.release()
        assert world.opened().shape() == world.shape
        fill(next_one, *range(1, 2 * BUCKETS))
        next_one.switch()
        next_one.release()
        assert grown_buckets(world) == list(range(2 * BUCKETS))
        assert world.remove_old() == BUCKETS
        assert world.remove_old() == 0
        assert grown_buckets(world) == list(range(2 * BUCKETS))

    def test_the_token_of_another_reshard_is_not_given_back(self, world: World) -> None:
        first, second, third = (world.successor(2 * BUCKETS) for _ in range(3))
        first.begin()
        world.end_reshard_token()
        second.begin()
        first.release()
        with pytest.raises(BucketExists, match="another reshard"):
            third.begin()
        second.release()
        third.begin()

    def test_buckets_of_an_interrupted_reshard_are_never_those_of_the_next(
        self, world: World
    ) -> None:
        interrupted = world.successor(2 * BUCKETS)
        interrupted.begin()
        fill(interrupted, *range(2 * BUCKETS))
        interrupted.release()
        whole = world.successor(2 * BUCKETS)
        whole.begin()
        with pytest.raises(MissingBucket, match="run it again"):
            whole.switch()
        fill(whole, *range(2 * BUCKETS))
        whole.switch()
        whole.release()
        with pytest.raises(ModelExists, match="--remove-old"):
            world.successor(4 * BUCKETS).begin()
        assert grown_buckets(world) == list(range(2 * BUCKETS))
