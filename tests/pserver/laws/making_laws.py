"""Laws of single rows, and of loading, creating and removing a model."""

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest

from headrace.pserver.errors import BucketExists, MissingBucket, MissingModel, ModelExists
from headrace.pserver.replica.replica import Replica
from headrace.pserver.rows.row_codec import FoldedRows
from headrace.pserver.store import Fold, LookResult
from tests.pserver.laws.store_world import (
    BUCKETS,
    LONG_MS,
    World,
    answered,
    fold_all,
    polled,
    refused,
    rows_at,
    standing,
)
from tests.pserver.rows.entries import SOURCE, Pusher


def folded_bucket(world: World, bucket: int) -> FoldedRows:
    """Push to a bucket, fold it, and return its rows."""
    pusher = Pusher(bucket, BUCKETS)
    answered(world.store, *(pusher.next() for _ in range(4)))
    world.store.claim(bucket, "k", LONG_MS)
    return fold_all(world, bucket, "k").rows


class MakingLaws:
    """The laws of models and buckets, a part of the laws of a store."""

    def test_a_limit_on_rows_outlives_the_model_and_can_be_changed(self, world: World) -> None:
        assert world.store.row_limit() == 0
        world.store.limit_rows(7)
        assert world.store.row_limit() == 7
        world.store.drop()
        assert world.store.row_limit() == 7, "a tenant may drop the model and create it again"
        world.store.create(world.shape)
        world.store.limit_rows(10**12)
        assert world.store.row_limit() == 10**12
        world.store.limit_rows(0)
        assert world.store.row_limit() == 0
        world.store.limit_rows(0)

    def test_single_rows_are_found_by_id(self, world: World) -> None:
        wanted = {}
        expected = {}
        for bucket in (2, 0):
            rows = folded_bucket(world, bucket)
            some = rows.chosen(np.arange(0, rows.ids.shape[0], 2))
            expected[bucket] = {int(i): some.values[n] for n, i in enumerate(some.ids)}
            unknown = some.ids[:1] + np.uint64(12345)
            wanted[bucket] = np.concatenate([some.ids[::-1], unknown])
        wanted |= {1: np.array([77], np.uint64), 3: np.zeros(0, np.uint64)}
        expected |= {1: {}, 3: {}}
        answers = world.store.look(wanted, dict.fromkeys(wanted, 2), 1)
        for bucket, answer in zip(wanted, answers, strict=True):
            assert isinstance(answer, LookResult)
            rows, polled_at_once = answer.rows.rows, answer.polled
            assert set(answer.rows.versions.tolist()) == ({4} if expected[bucket] else set())
            found = {int(i): rows.values[n] for n, i in enumerate(rows.ids)}
            assert found.keys() == expected[bucket].keys()
            for row_id, values in found.items():
                assert values.tobytes() == expected[bucket][row_id].tobytes()
            assert polled_at_once == polled(world.store, bucket, 2, 1)

    def test_a_lost_bucket_is_filled_under_a_new_history(self, world: World) -> None:
        rows = folded_bucket(world, 1)
        before = standing(world.store, 1)
        assert world.store.missing() == []
        world.empty(1)
        assert world.store.missing() == [1]
        half = rows.ids.shape[0] // 2
        chunks = [rows.chosen(slice(0, half)), rows.chosen(slice(half, None))]
        world.store.load(1, 9, {SOURCE: 7, "b/1": 3}, chunks)
        assert world.store.missing() == []
        after = standing(world.store, 1)
        assert (after.version, after.marks, after.log_bytes) == (9, {SOURCE: 7, "b/1": 3}, 0)
        assert after.nonce != before.nonce
        found = polled(world.store, 1, 0)
        assert (found.trimmed, found.entries) == (9, ())
        replica, loaded = rows_at(world, 1)
        order, expected = np.argsort(loaded.ids), np.argsort(rows.ids)
        for name in FoldedRows._fields:
            left, right = getattr(loaded, name)[order], getattr(rows, name)[expected]
            assert left.tobytes() == right.tobytes(), name
        pusher = Pusher(1, BUCKETS)
        pusher.offset = 7
        [answer] = answered(world.store, pusher.next())
        assert answer.version == 10
        replica.poll()
        assert replica.checksum(1) == rows_at(world, 1)[0].checksum(1)

    def test_a_keeper_of_a_lost_history_is_refused_after_a_load(self, world: World) -> None:
        rows = folded_bucket(world, 1)
        head = standing(world.store, 1)
        follower, _ = rows_at(world, 1)
        world.empty(1)
        world.store.load(1, head.version, head.marks, [])
        assert refused(world.store.fold([Fold(1, "k", 2, head.version, head.nonce, rows)]))
        while follower.poll():  # another nonce at the same version: copied again, without rows
            pass
        assert not follower.table.everything().exist().any()

    def test_a_load_of_an_existing_bucket_is_refused(self, world: World) -> None:
        rows = folded_bucket(world, 1)
        before = standing(world.store, 1)
        with pytest.raises(BucketExists):
            world.store.load(1, 1, {}, [])
        assert standing(world.store, 1) == before
        assert rows_at(world, 1)[1].ids.shape == rows.ids.shape

    def test_an_interrupted_load_leaves_the_bucket_missing_and_nothing_behind(
        self, world: World
    ) -> None:
        rows = folded_bucket(world, 1)
        world.empty(1)

        def cut() -> object:
            yield rows
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            world.store.load(1, 4, {SOURCE: 5}, cut())  # type: ignore[arg-type]
        assert world.store.missing() == [1]
        with pytest.raises(MissingBucket):
            world.store.marks([1])
        world.store.load(1, 2, {}, [rows.chosen(slice(0, 1))])
        assert rows_at(world, 1)[1].ids.tolist() == rows.ids[:1].tolist()

    @pytest.mark.parametrize("later_chunks", [0, 1])
    def test_a_load_is_refused_once_another_load_of_its_bucket_began(
        self, world: World, later_chunks: int
    ) -> None:
        rows = folded_bucket(world, 1)
        world.empty(1)

        def killed_at_once() -> Iterator[FoldedRows]:
            yield from ()
            raise KeyboardInterrupt

        def overtaken() -> Iterator[FoldedRows]:
            yield rows
            with pytest.raises(KeyboardInterrupt):
                world.store.load(1, 3, {}, killed_at_once())
            yield from [rows] * later_chunks

        with pytest.raises(BucketExists):
            world.store.load(1, 4, {SOURCE: 5}, overtaken())
        assert world.store.missing() == [1]

    def test_a_load_is_refused_once_another_load_of_its_bucket_ended(self, world: World) -> None:
        rows = folded_bucket(world, 1)
        world.empty(1)

        def overtaken() -> Iterator[FoldedRows]:
            yield rows
            world.store.load(1, 3, {SOURCE: 2}, [rows.chosen(slice(0, 1))])
            yield rows

        with pytest.raises(BucketExists):
            world.store.load(1, 4, {SOURCE: 5}, overtaken())
        after = standing(world.store, 1)
        assert (after.version, after.marks) == (3, {SOURCE: 2})
        assert rows_at(world, 1)[1].ids.tolist() == rows.ids[:1].tolist()

    def test_creating_a_model_keeps_the_buckets_that_exist(self, world: World) -> None:
        rows = folded_bucket(world, 1)
        world.store.drop()
        world.store.begin(world.shape)
        world.store.load(1, 4, {SOURCE: 5}, [rows])
        before = standing(world.store, 1)
        world.store.create(world.shape)
        assert standing(world.store, 1) == before
        assert rows_at(world, 1)[1].ids.shape == rows.ids.shape
        assert [standing(world.store, bucket).version for bucket in range(BUCKETS)] == [0, 4, 0, 0]

    def test_creating_a_model_never_takes_the_rows_of_an_unfinished_load(
        self, world: World
    ) -> None:
        rows = folded_bucket(world, 1)
        world.store.drop()
        world.store.begin(world.shape)

        def killed() -> Iterator[FoldedRows]:
            yield rows
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            world.store.load(1, 4, {SOURCE: 5}, killed())
        with pytest.raises(BucketExists, match="restore"):
            world.store.create(world.shape)
        with pytest.raises(MissingModel):
            world.store.shape()
        world.store.load(1, 2, {}, [])
        world.store.create(world.shape)
        assert standing(world.store, 1).version == 2
        assert rows_at(world, 1)[1].ids.tolist() == []

    def test_a_model_is_missing_until_its_load_is_finished(self, world: World) -> None:
        world.store.drop()
        world.store.begin(world.shape)
        with pytest.raises(MissingModel):
            world.store.shape()
        assert world.store.missing() == list(range(BUCKETS))
        for bucket in range(BUCKETS - 1):
            world.store.load(bucket, 0, {}, [])
        with pytest.raises(MissingBucket, match="restore"):
            world.store.finish()
        world.store.load(BUCKETS - 1, 0, {}, [])
        world.store.finish()
        assert world.store.shape() == world.shape

    def test_beginning_a_model_with_another_shape_is_refused(self, world: World) -> None:
        with pytest.raises(ModelExists):
            world.store.begin(dataclasses.replace(world.shape, fingerprint="else"))
        world.store.begin(world.shape)
        assert world.store.shape() == world.shape

    def test_a_dropped_model_can_be_created_again_without_rows(self, world: World) -> None:
        folded_bucket(world, 0)
        world.store.drop()
        for call in (world.store.shape, world.store.missing):
            with pytest.raises(MissingModel):
                call()
        world.store.drop()  # again: there is nothing left to do
        world.store.create(world.shape)
        replica = Replica(world.store, world.shape)
        replica.poll()
        assert replica.complete
        assert len(replica.table) == 0
        assert standing(world.store, 0).marks == {}
