"""The laws of a store under users with the permissions of the roles, and nothing beyond them.

The rules are those that `headrace pserver acl` prints.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import redis

from headrace.pserver.errors import AccessRefused
from headrace.pserver.inspection.model_survey import survey
from headrace.pserver.keeper.bucket_lease import FoldPolicy
from headrace.pserver.keeper.keeper import Keeper
from headrace.pserver.redis_backend.node_connection import Call
from headrace.pserver.redis_backend.redis_store import RedisStore, StoreSettings, open_store
from headrace.pserver.replica.replica import Replica
from headrace.pserver.store import BucketAnswer, Shape
from tests.pserver.laws.store_laws import BUCKETS, StoreLaws, World
from tests.pserver.laws.store_worlds import RedisWorld
from tests.pserver.redis_backend.access_grants import PASSWORD, ROLE, grant
from tests.pserver.rows.entries import WIDTH, Pusher


class OperatorWorld(RedisWorld):
    """An operator uses the store; an administrator breaks it."""

    def __init__(self, url: str, model: str, granted: str) -> None:
        self._admin = open_store(url, model)
        super().__init__(granted, model)

    def run(self, *calls: Call) -> list[Any]:
        replies = self._admin.nodes.run(calls)
        assert not any(isinstance(reply, Exception) for reply in replies), replies
        return replies

    def close(self) -> None:
        self._admin.close()
        self.store.close()


class TestOperator(StoreLaws):
    @pytest.fixture
    def world(self, valkey_node: str, fresh_name: Callable[[str], str]) -> Iterator[World]:
        model = fresh_name("operator")
        world = OperatorWorld(valkey_node, model, grant(valkey_node, "operator", model))
        yield world
        world.close()


@pytest.fixture
def model(fresh_name: Callable[[str], str]) -> str:
    return fresh_name("roles")


@pytest.fixture
def shape(valkey_node: str, model: str) -> Shape:
    shape = Shape(model, BUCKETS, WIDTH, "fingerprint", "spec")
    with closing(open_store(valkey_node, model, StoreSettings(sub_hashes=4))) as store:
        store.create(shape)
    return shape


def opened(server: str, role: str, model: str) -> RedisStore:
    settings = StoreSettings(sub_hashes=4, read_only=role == "server")
    return open_store(grant(server, role, model), model, settings)


def test_every_acl_role_can_do_its_work(valkey_node: str, shape: Shape) -> None:
    learner, keeper, server, operator = (
        opened(valkey_node, role, shape.model)
        for role in ("learner", "keeper", "server", "operator")
    )
    with closing(learner), closing(keeper), closing(server), closing(operator):
        pushers = [Pusher(bucket, BUCKETS) for bucket in range(BUCKETS)]
        for _ in range(2):
            answers = learner.push([pusher.next() for pusher in pushers])
            assert all(isinstance(answer, BucketAnswer) for answer in answers)
        keeping = FoldPolicy(keep_ms=0, lease_ms=60_000)
        keeper_of = Keeper(
            keeper,
            keeper.shape(),
            name="k",
            keeping=keeping,
            now_ms=itertools.count(0, 100).__next__,
            draw_nonce=lambda: b"12345678",
        )
        for _ in range(200):
            keeper_of.step()
        assert keeper_of.leased == list(range(BUCKETS))
        keeper_of.release()
        replicas = [Replica(store, store.shape()) for store in (learner, server)]
        for replica in replicas:
            while not replica.complete:
                replica.poll()
        assert replicas[0].checksum(0) == replicas[1].checksum(0)
        seen = survey(operator, shape.model)
        assert [each.trimmed for each in seen.buckets] == [1] * BUCKETS
        assert all(each.rows for each in seen.buckets)
        assert seen.nodes[0].settings
        operator.drop()
        assert operator.nodes.run([Call(b"", ("SCAN", "0"))])


FOREIGN = [("FLUSHALL",), ("CONFIG", "SET", "maxmemory", "1"), ("SHUTDOWN",), ("ACL", "LIST"),
           ("KEYS", "*"), ("EVAL", "return 1", "0"), ("FUNCTION", "FLUSH"),
           ("GET", "somebody-elses")]  # fmt: skip


@pytest.mark.parametrize("role", list(ROLE))
@pytest.mark.parametrize("words", FOREIGN, ids=lambda words: " ".join(words[:2]))
def test_a_command_beyond_the_acl_role_is_refused_with_setting_and_node(
    valkey_node: str, shape: Shape, role: str, words: tuple[str, ...]
) -> None:
    node = valkey_node.removeprefix("redis://")
    with closing(opened(valkey_node, role, shape.model)) as store:
        [answer] = store.nodes.run([Call(b"", words)])
    assert isinstance(answer, AccessRefused)
    assert "--redis / HEADRACE_REDIS" in str(answer)
    assert node in str(answer)
    assert "headrace pserver acl" in str(answer)
    assert PASSWORD not in str(answer)


def test_an_acl_role_cannot_do_the_work_of_another(valkey_node: str, shape: Shape) -> None:
    push = Pusher(0, BUCKETS).next()
    with closing(opened(valkey_node, "server", shape.model)) as server:
        for call in (lambda: server.push([push]), lambda: server.claim(0, "k", 1000), server.drop):
            with pytest.raises(AccessRefused):
                call()
    with closing(opened(valkey_node, "learner", shape.model)) as learner:
        with pytest.raises(AccessRefused, match="headrace pserver acl"):
            learner.drop()
        with pytest.raises(AccessRefused, match="headrace pserver acl"):
            learner.claim(0, "k", 1000)  # refused inside the function
        assert all(isinstance(answer, BucketAnswer) for answer in learner.push([push]))


@pytest.mark.parametrize("role", ["learner", "keeper", "server"])
def test_only_an_operator_can_change_the_limit_on_rows(
    valkey_node: str, shape: Shape, role: str
) -> None:
    with closing(opened(valkey_node, "operator", shape.model)) as operator:
        operator.limit_rows(1000)
    with closing(opened(valkey_node, role, shape.model)) as store:
        for most_rows in (0, 5000):
            with pytest.raises(AccessRefused):
                store.limit_rows(most_rows)
        assert store.row_limit() == 1000


def test_an_acl_user_cannot_read_another_model(
    valkey_node: str, shape: Shape, fresh_name: Callable[[str], str]
) -> None:
    other = fresh_name("other")
    with (
        closing(open_store(grant(valkey_node, "operator", other), shape.model)) as store,
        pytest.raises(AccessRefused),
    ):
        store.shape()


@pytest.mark.parametrize("role", list(ROLE))
def test_an_acl_user_of_a_prefix_cannot_use_the_same_model_of_another_environment(
    valkey_node: str, model: str, role: str
) -> None:
    for prefix in ("team-a.", "team-b."):
        settings = StoreSettings(key_prefix=prefix)
        with closing(open_store(valkey_node, model, settings)) as store:
            store.create(Shape(model, BUCKETS, WIDTH, "fingerprint", "spec"))
    url = grant(valkey_node, role, model, "team-a.")
    read_only = role == "server"
    own, foreign, bare = (
        StoreSettings(key_prefix=prefix, read_only=read_only)
        for prefix in ("team-a.", "team-b.", "")
    )
    with closing(open_store(url, model, own)) as store:
        assert store.shape().model == model
    for settings in (foreign, bare):
        with closing(open_store(url, model, settings)) as store, pytest.raises(AccessRefused):
            store.shape()


def test_a_process_without_permission_to_load_functions_is_refused_at_the_start(
    valkey_node: str, model: str
) -> None:
    url = grant(valkey_node, "server", model)
    with redis.Redis.from_url(valkey_node) as admin:
        loaded = admin.execute_command("FUNCTION", "DUMP")
        admin.execute_command("FUNCTION", "FLUSH")
        try:
            with pytest.raises(AccessRefused, match=r"function\|load"):
                open_store(url, model)
            open_store(url, model, StoreSettings(read_only=True)).close()
        finally:
            admin.execute_command("FUNCTION", "RESTORE", loaded, "REPLACE")
