"""The laws that hold on every real server, beside those of all stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.pserver.errors import BucketExists
from headrace.pserver.redis_backend.commands import RedisCommands
from headrace.pserver.store import BucketAnswer, OffsetSpan, Push
from tests.pserver.laws.store_laws import BUCKETS, StoreLaws

if TYPE_CHECKING:
    from tests.pserver.laws.store_worlds import RedisWorld


class RedisLaws(StoreLaws):
    """The laws, and those of late calls, which the store in memory cannot have."""

    def test_a_late_copy_of_the_call_that_ends_a_load_is_refused(self, world: RedisWorld) -> None:
        world.empty(1)
        calls = RedisCommands(world.store.nodes, world.shape.model)
        names = ["log", "marks", "rows:0"]
        end = calls.function("load_end", 1, ["marks"], ["token", 4, b"a nonce", "t/0", 7])
        calls.all([calls.function("load_begin", 1, names, ["token"]), end])
        [answer] = world.store.push([Push(1, (OffsetSpan("t/0", 7, 8),), b"another", b"")])
        assert isinstance(answer, BucketAnswer)
        with pytest.raises(BucketExists):
            calls.all([end])
        assert world.store.marks([1]) == [answer]

    def test_the_shape_is_replaced_only_under_the_token_and_as_it_was_read(
        self, world: RedisWorld
    ) -> None:
        calls = RedisCommands(world.store.nodes, world.shape.model)
        keys, shape = ("shape", "reshard"), calls.one(calls.shape_key, "GET", calls.shape_key)
        reshard = world.successor(2 * BUCKETS)
        assert calls.on_model("reshape", keys, (shape, shape, "a token")) == -1
        reshard.begin()
        planned = calls.one(calls.shape_key, "GET", calls.shape_key)
        assert calls.on_model("reshape", keys, (planned, shape, "another")) == -1
        assert calls.on_model("reshape", keys, (shape, shape, "")) == 0
        assert calls.one(calls.shape_key, "GET", calls.shape_key) == planned
        assert calls.on_model("hold_reshard", ("reshard",), ("another", 5)) == 0
        assert calls.on_model("hold_reshard", ("reshard",), ("another", 0)) == 0
        assert calls.on_model("reshape", keys, (planned, shape, reshard.token)) == 1
        assert calls.one(calls.shape_key, "GET", calls.shape_key) == shape
