"""The laws of every store: one list that runs on the fake and on the real ones."""

import random
from typing import Any

import numpy as np
import pytest

from headrace.pserver.errors import MissingBucket, ModelExists
from headrace.pserver.replica.replica import Replica
from headrace.pserver.rows.deltas import RowDeltas
from headrace.pserver.store import Fold, OffsetSpan, PollResult, Push, Shape, Trim
from tests.pserver.laws.deletion_laws import DeletionLaws
from tests.pserver.laws.keeper_laws import KeeperLaws
from tests.pserver.laws.making_laws import MakingLaws
from tests.pserver.laws.reshard_laws import ReshardLaws
from tests.pserver.laws.store_world import (
    BUCKETS,
    LONG_MS,
    World,
    answered,
    fold_all,
    polled,
    rows_at,
    standing,
    trim_through,
)
from tests.pserver.rows.entries import SOURCE, WIDTH, Pusher, blob_of, deltas_of, unpacked

__all__ = ["BUCKETS", "StoreLaws", "World"]


class StoreLaws(MakingLaws, KeeperLaws, DeletionLaws, ReshardLaws):
    """The laws. A subclass provides the fixture `world`."""

    @pytest.mark.parametrize(
        "other", [{"buckets": 8}, {"width": 3}, {"fingerprint": "else"}, {"spec": "else"}]
    )
    def test_creating_a_model_with_another_shape_is_refused(
        self, world: World, other: dict[str, Any]
    ) -> None:
        found = world.shape
        shape = {name: getattr(found, name) for name in Shape.__slots__} | other
        with pytest.raises(ModelExists):
            world.store.create(Shape(**shape))
        assert world.store.shape() == found

    def test_a_new_bucket_has_version_0_and_a_nonce_of_its_own(self, world: World) -> None:
        heads = [standing(world.store, bucket) for bucket in range(BUCKETS)]
        assert [head.version for head in heads] == [0] * BUCKETS
        assert len({head.nonce for head in heads}) == BUCKETS
        assert all(len(head.nonce) == 8 and not head.marks for head in heads)

    def test_a_push_moves_marks_version_nonce_and_log_together(self, world: World) -> None:
        before = standing(world.store, 2)
        push = Pusher(2, BUCKETS).next()
        [answer] = answered(world.store, push)
        assert answer.covers(push.spans)
        assert (answer.version, answer.nonce, answer.previous) == (1, push.nonce, before.nonce)
        assert answer.log_bytes == len(push.blob)
        assert standing(world.store, 2) == answer
        [entry] = polled(world.store, 2, 0).entries
        assert (entry.version, entry.nonce, entry.previous) == (1, push.nonce, before.nonce)
        assert entry.blob == push.blob

    def test_a_repeated_push_is_applied_once_and_answered_alike(self, world: World) -> None:
        push = Pusher(0, BUCKETS).next()
        [first] = answered(world.store, push)
        [second] = answered(world.store, push)
        assert second == first
        assert second.covers(push.spans)
        assert len(polled(world.store, 0, 0).entries) == 1

    def test_a_push_that_does_not_begin_at_the_marks_changes_nothing(self, world: World) -> None:
        pusher = Pusher(0, BUCKETS)
        answered(world.store, pusher.next())
        before = standing(world.store, 0)
        for start in (before.marks[SOURCE] - 1, before.marks[SOURCE] + 1):
            span = OffsetSpan(SOURCE, start, start + 7)
            [answer] = answered(world.store, Push(0, (span,), b"8 random", b"blob"))
            assert not answer.covers((span,))
            assert answer.marks == {SOURCE: before.marks[SOURCE]}
        assert standing(world.store, 0) == before

    def test_a_push_of_several_sources_moves_all_marks_or_none(self, world: World) -> None:
        both = (OffsetSpan("a/0", 0, 3), OffsetSpan("b/1", 0, 5))
        [answer] = answered(world.store, Push(0, both, b"n1", b"x"))
        assert answer.marks == {"a/0": 3, "b/1": 5}
        good = {"a/0": OffsetSpan("a/0", 3, 4), "b/1": OffsetSpan("b/1", 5, 6)}
        for wrong in (OffsetSpan("a/0", 2, 4), OffsetSpan("b/1", 4, 6)):
            spans = tuple((good | {wrong.source: wrong}).values())
            [answer] = answered(world.store, Push(0, spans, b"n2", b"x"))
            assert answer.marks == {"a/0": 3, "b/1": 5}
            assert answer.version == 1
        [answer] = answered(world.store, Push(0, (OffsetSpan("c/0", 0, 1),), b"n3", b"x"))
        assert answer.marks == {"c/0": 1}
        assert standing(world.store, 0).marks == {"a/0": 3, "b/1": 5, "c/0": 1}

    @pytest.mark.parametrize("sources", [4_500, 9_000])
    def test_a_push_of_thousands_of_sources_leaves_a_usable_bucket(
        self, world: World, sources: int
    ) -> None:
        for start in (0, 2):
            spans = tuple(OffsetSpan(f"t/{n}", start, start + 2) for n in range(sources))
            [answer] = answered(world.store, Push(0, spans, b"nonce %02d" % start, b"blob"))
            assert answer.covers(spans)
        assert len(standing(world.store, 0).marks) == sources
        assert polled(world.store, 0, 0).version == 2

    def test_a_push_may_have_an_empty_span_beside_another(self, world: World) -> None:
        spans = (OffsetSpan("a/0", 0, 0), OffsetSpan("b/0", 0, 2))
        [answer] = answered(world.store, Push(3, spans, b"n", b""))
        assert answer.covers(spans)

    def test_a_mark_that_a_push_moves_back_to_0_is_deleted(self, world: World) -> None:
        begin = (OffsetSpan("a/0", 0, 3), OffsetSpan("a/0#1", 0, 8), OffsetSpan("a/0#2", 0, 9))
        answered(world.store, Push(0, begin, b"n1", b"x"))
        end = Push(0, (OffsetSpan("a/0#1", 8, 0), OffsetSpan("a/0", 3, 4)), b"n2", b"y")
        for _ in range(2):  # a retry is answered alike
            [answer] = answered(world.store, end)
            assert answer.marks == {"a/0#1": 0, "a/0": 4}
            assert answer.covers(end.spans)
            assert answer.version == 2
        assert standing(world.store, 0).marks == {"a/0": 4, "a/0#2": 9}
        late = Push(0, (OffsetSpan("a/0#1", 8, 0), OffsetSpan("a/0", 4, 5)), b"n3", b"z")
        [answer] = answered(world.store, late)
        assert not answer.covers(late.spans)
        assert standing(world.store, 0).marks == {"a/0": 4, "a/0#2": 9}

    def test_a_push_may_end_thousands_of_marks(self, world: World) -> None:
        spans = tuple(OffsetSpan(f"t/0#{n}", 0, 4) for n in range(4_500))
        answered(world.store, Push(0, spans, b"n1", b"x"))
        ends = tuple(OffsetSpan(span.source, 4, 0) for span in spans)
        [answer] = answered(world.store, Push(0, ends, b"n2", b"y"))
        assert answer.covers(ends)
        assert standing(world.store, 0).marks == {}

    def test_pushes_to_several_buckets_are_answered_in_order(self, world: World) -> None:
        pushes = [Pusher(bucket, BUCKETS).next() for bucket in (3, 0, 2, 1)]
        answers = answered(world.store, *pushes)
        assert [(a.bucket, a.nonce) for a in answers] == [(p.bucket, p.nonce) for p in pushes]
        assert [standing(world.store, b).version for b in range(BUCKETS)] == [1] * BUCKETS

    def test_offsets_beyond_32_bits_are_exact(self, world: World) -> None:
        far = 2**52 + 1
        answered(world.store, Push(0, (OffsetSpan(SOURCE, 0, far),), b"a", b""))
        [answer] = answered(world.store, Push(0, (OffsetSpan(SOURCE, far, far + 1),), b"b", b""))
        assert answer.marks == {SOURCE: far + 1}

    def test_any_bytes_survive_in_nonce_and_blob(self, world: World) -> None:
        every = bytes(range(256)) * 300
        answered(world.store, Push(0, (OffsetSpan("Ä \r\n$9/0", 0, 1),), every[:8], every))
        [entry] = polled(world.store, 0, 0).entries
        assert (entry.nonce, entry.blob) == (every[:8], every)
        assert standing(world.store, 0).marks == {"Ä \r\n$9/0": 1}

    def test_entries_are_a_chain_of_nonces(self, world: World) -> None:
        pusher = Pusher(0, BUCKETS)
        nonce = standing(world.store, 0).nonce
        for _ in range(7):
            answered(world.store, pusher.next())
        found = polled(world.store, 0, 0)
        for version, entry in enumerate(found.entries, 1):
            assert (entry.version, entry.previous) == (version, nonce)
            nonce = entry.nonce
        assert (found.version, found.nonce) == (7, nonce)

    def test_poll_returns_the_entries_beyond_a_version_up_to_the_limit(self, world: World) -> None:
        pusher = Pusher(0, BUCKETS)
        for _ in range(7):
            answered(world.store, pusher.next())
        assert [e.version for e in polled(world.store, 0, 2, limit=3).entries] == [3, 4, 5]
        assert polled(world.store, 0, 2, limit=3).version == 7
        assert polled(world.store, 0, 7).entries == ()
        answers = world.store.poll({3: 0, 0: 6}, 10)
        assert [a.bucket for a in answers if isinstance(a, PollResult)] == [3, 0]

    def test_a_failover_takes_marks_log_and_head_back_together(self, world: World) -> None:
        pusher = Pusher(0, BUCKETS)
        answered(world.store, pusher.next())
        checkpoint, before = world.checkpoint(0), standing(world.store, 0)
        lost = pusher.next()
        answered(world.store, lost)
        world.revert(0, checkpoint)
        assert standing(world.store, 0) == before
        [answer] = answered(world.store, lost)
        assert answer.covers(lost.spans)
        assert answer.version == 2

    def test_rows_and_log_together_equal_the_pushes(self, world: World) -> None:
        pusher = Pusher(0, BUCKETS)
        world.store.claim(0, "k", LONG_MS)
        whole = Replica(world.store, world.shape, buckets=[0])
        whole.poll()
        for number in range(1, 5):
            answered(world.store, pusher.next(), pusher.next())
            fold = fold_all(world, 0, "k", number)
            answered(world.store, pusher.next())
            assert world.store.trim([trim_through(fold, fold.version - 1)]) == [None]
            whole.poll()
        replica, _ = rows_at(world, 0)
        assert replica.checksum(0) == whole.checksum(0)
        assert replica.position(0).version == whole.position(0).version == 12

    def test_a_large_push_and_fold_arrive_whole(self, world: World) -> None:
        dice = random.Random(3)
        ids = np.unique(np.array([dice.getrandbits(62) for _ in range(5000)], np.uint64))
        one = deltas_of(0, BUCKETS, dice, rows=1)
        deltas = RowDeltas._make(
            [ids, *(np.repeat(column, len(ids), axis=0) for column in one[1:])]
        )
        answered(world.store, Push(0, (OffsetSpan(SOURCE, 0, 1),), b"nonce", blob_of(deltas)))
        world.store.claim(0, "k", LONG_MS)
        fold_all(world, 0, "k")
        found = [chunk.rows for chunk in world.store.rows(0)]
        assert np.array_equal(np.sort(np.concatenate([rows.ids for rows in found])), ids)
        assert unpacked(polled(world.store, 0, 0).entries[0].blob)[1].values.shape[1] == WIDTH

    def test_a_bucket_that_came_back_empty_stops_every_call(self, world: World) -> None:
        push = Pusher(1, BUCKETS).next()
        answered(world.store, push)
        world.empty(1)
        calls = (
            lambda: world.store.push([push]),
            lambda: world.store.marks([0, 1]),
            lambda: world.store.poll({0: 0, 1: 1}, 10),
            lambda: world.store.claim(1, "k", LONG_MS),
            lambda: world.store.fold([Fold(1, "k", 1, 1, push.nonce, rows_at(world, 0)[1])]),
            lambda: world.store.trim([Trim(1, "k", 0, 1, push.nonce, 1, 0)]),
            lambda: world.store.create(world.shape),
        )
        for call in calls:
            with pytest.raises(MissingBucket, match="restore"):
                call()

    def test_a_push_that_moves_no_mark_is_invalid(self, world: World) -> None:
        before = standing(world.store, 0)
        for spans in (
            (),
            (OffsetSpan("a/0", 1, 1),),
            (OffsetSpan("a/0", 0, 1), OffsetSpan("a/0", 1, 2)),
        ):
            with pytest.raises(ValueError, match="spans"):
                Push(0, spans, b"n", b"")
        wrong = [("version", 0, 1), ("a/0", 2, 1), ("a/0", -1, 1), ("a/0", 0, -1), ("a/0", -2, 0)]
        for source, start, stop in wrong:
            with pytest.raises(ValueError, match="offsets"):
                OffsetSpan(source, start, stop)
        assert standing(world.store, 0) == before
