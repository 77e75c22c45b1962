"""The store's answers when real servers die, stall, move slots, lose functions and run full."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis import exceptions
from redis.crc import key_slot

from headrace.deploy.local.services.valkey import ValkeyNode
from headrace.pserver.errors import AccessRefused, OutOfMemory, StoreError, Unreachable
from headrace.pserver.redis_backend.address import parse_address
from headrace.pserver.redis_backend.error_translation import translated
from headrace.pserver.redis_backend.node_connection import Call, WaitLimits
from headrace.pserver.redis_backend.redis_store import RedisStore, StoreSettings, open_store
from headrace.pserver.replica.replica import Replica, Stale
from headrace.pserver.store import BucketAnswer, Fold, OffsetSpan, PollResult, Push, Shape, Trim
from tests.pserver.rows.entries import SOURCE, WIDTH, Pusher
from tests.pserver.rows.truth import rows_of, truth
from tests.running_server import running_server
from tests.valkey_cluster import ValkeyCluster

BUCKETS = 16
WAITING = WaitLimits(connect_timeout_ms=3000, answer_timeout_ms=3000)
"""A node that works answers within it on a loaded machine too; a stopped one is waited for."""
DEADLINE_S = 90.0


@pytest.fixture(scope="module")
def own_cluster(stack_directory: Path) -> Iterator[ValkeyCluster]:
    """A cluster of this module's own, because the tests break it in many ways."""
    own_cluster = ValkeyCluster(stack_directory / "faults", primaries=2, remove=stack_directory)
    with running_server(own_cluster):
        yield own_cluster


@pytest.fixture
def shape(fresh_name: Callable[[str], str]) -> Shape:
    return Shape(fresh_name("faults"), BUCKETS, WIDTH, "fingerprint", "spec")


@pytest.fixture
def store(own_cluster: ValkeyCluster, shape: Shape) -> Iterator[RedisStore]:
    store = open_store(own_cluster.url, shape.model, StoreSettings(WAITING, sub_hashes=4))
    store.create(shape)
    yield store
    store.close()


def by_node(store: RedisStore, node: ValkeyNode) -> tuple[list[int], list[int]]:
    """The buckets on this node, and those on others; at least one each."""
    here = [bucket for bucket in range(BUCKETS) if store.node_of(bucket) == node.address]
    there = [bucket for bucket in range(BUCKETS) if bucket not in here]
    assert here
    assert there
    return here, there


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline


@contextlib.contextmanager
def killed(own_cluster: ValkeyCluster, index: int) -> Iterator[None]:
    own_cluster.kill(index)
    try:
        yield
    finally:
        own_cluster.restart(index)


@contextlib.contextmanager
def stopped(own_cluster: ValkeyCluster, index: int) -> Iterator[None]:
    os.kill(own_cluster.nodes[index].pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(own_cluster.nodes[index].pid, signal.SIGCONT)


@pytest.mark.parametrize("fault", [killed, stopped])
def test_a_node_that_does_not_answer_leaves_the_others_buckets_alone(
    own_cluster: ValkeyCluster, store: RedisStore, shape: Shape, fault: Any
) -> None:
    here, there = by_node(store, own_cluster.nodes[0])
    pushers = [Pusher(bucket, BUCKETS) for bucket in range(BUCKETS)]
    done = [pusher.next() for pusher in pushers]
    store.push(done)
    replica = Replica(store, shape)
    while not replica.complete:
        replica.poll()
    pushes = [pusher.next() for pusher in pushers]
    with fault(own_cluster, 0):
        for _ in range(3):  # waits once, then fails at once
            answers = store.push(pushes)
            assert all(type(answers[bucket]) is Unreachable for bucket in here)
            assert all(isinstance(answers[bucket], BucketAnswer) for bucket in there)
        assert all(own_cluster.nodes[0].address in str(answers[bucket]) for bucket in here)
        changes = replica.poll()
        assert {c.bucket for c in changes if isinstance(c, Stale)} == set(here)
        assert all(replica.position(bucket).version == 2 for bucket in there)

    def all_answer() -> bool:
        return all(isinstance(answer, BucketAnswer) for answer in store.push(pushes))

    until(all_answer)
    assert all(
        answer.covers(push.spans)
        for answer, push in zip(store.push(pushes), pushes, strict=True)
        if isinstance(answer, BucketAnswer)
    )

    def up_to_date() -> bool:
        replica.poll()
        return all(replica.position(bucket).version == 2 for bucket in range(BUCKETS))

    until(up_to_date)
    for bucket in range(BUCKETS):
        assert rows_of(replica, bucket) == truth([done[bucket], pushes[bucket]])


def test_a_node_that_forgot_the_functions_gets_them_again(
    own_cluster: ValkeyCluster, store: RedisStore
) -> None:
    for node in own_cluster.nodes:
        node.call("FUNCTION", "FLUSH", "SYNC")
    pushes = [Pusher(bucket, BUCKETS).next() for bucket in range(BUCKETS)]
    answers = store.push(pushes)
    assert [answer.version for answer in answers if isinstance(answer, BucketAnswer)] == [
        1
    ] * BUCKETS
    assert all("headrace" in node.call("FUNCTION", "LIST") for node in own_cluster.nodes)


def test_a_full_node_refuses_pushes_and_still_folds_and_trims(
    own_cluster: ValkeyCluster, store: RedisStore, shape: Shape
) -> None:
    bucket = by_node(store, own_cluster.nodes[0])[0][0]
    pusher = Pusher(bucket, BUCKETS)
    first, second = pusher.next(), pusher.next()
    store.push([first])
    replica = Replica(store, shape, buckets=[bucket])
    replica.poll()
    own_cluster.nodes[0].call("CONFIG", "SET", "maxmemory", 1)
    try:
        [refused] = store.push([second])
        assert isinstance(refused, OutOfMemory)
        assert own_cluster.nodes[0].address in str(refused)
        assert store.claim(bucket, "k", 60_000)
        head = replica.position(bucket).version, replica.position(bucket).nonce
        rows = replica.table.everything()
        assert store.fold([Fold(bucket, "k", 1, *head, rows)]) == [None]
        assert store.trim([Trim(bucket, "k", 1, *head, 1, 0)]) == [None]
        store.release(bucket, "k")
        [polled] = store.poll({bucket: 1}, 10)
        assert isinstance(polled, PollResult)
        assert polled.version == 1
        own_cluster.nodes[0].call("FUNCTION", "FLUSH", "SYNC")
        [refused] = store.push([second])  # the functions do not fit either
        assert isinstance(refused, OutOfMemory)
    finally:
        own_cluster.nodes[0].call("CONFIG", "SET", "maxmemory", 0)
    [answer] = store.push([second])
    assert isinstance(answer, BucketAnswer)
    assert answer.version == 2


def test_a_wrong_map_of_slots_is_corrected_by_redirections(
    own_cluster: ValkeyCluster, store: RedisStore
) -> None:
    slots = store.nodes._slots
    first, last = slots[0], slots[-1]
    slots[:] = [last if place == first else first for place in slots]
    pushes = [Pusher(bucket, BUCKETS).next() for bucket in range(BUCKETS)]
    answers = store.push(pushes)
    assert [answer.nonce for answer in answers if isinstance(answer, BucketAnswer)] == [
        push.nonce for push in pushes
    ]
    assert [
        answer.version for answer in store.marks(range(BUCKETS)) if isinstance(answer, BucketAnswer)
    ]
    by_node(store, own_cluster.nodes[0])


def test_a_bucket_can_be_created_while_its_slot_moves_and_used_afterwards(
    own_cluster: ValkeyCluster, fresh_name: Callable[[str], str]
) -> None:
    model = fresh_name("moving")
    store = open_store(own_cluster.url, model, StoreSettings(WAITING, sub_hashes=4))
    slot = key_slot(f"{{{model}:0}}".encode())
    old, new = own_cluster.nodes
    if store.node_of(0) != old.address:
        old, new = new, old
    old_id, new_id = old.call("CLUSTER", "MYID"), new.call("CLUSTER", "MYID")
    new.call("CLUSTER", "SETSLOT", slot, "IMPORTING", old_id)
    old.call("CLUSTER", "SETSLOT", slot, "MIGRATING", new_id)
    try:
        store.create(Shape(model, 1, WIDTH, "fingerprint", "spec"))
        assert new.call("CLUSTER", "COUNTKEYSINSLOT", slot) == "1"  # ASK was followed
        push = Pusher(0, 1).next()
        [answer] = store.push([push])
        assert type(answer) is Unreachable  # its log might still be on the other node
        for node in (new, old):
            node.call("CLUSTER", "SETSLOT", slot, "NODE", new_id)
        [answer] = store.push([push])
        assert isinstance(answer, BucketAnswer)
        assert answer.version == 1
        assert store.node_of(0) == new.address
    finally:
        for name in ("marks", "log"):
            key = f"{{{model}:0}}:{name}".encode()
            store.nodes.run([Call(key, ("DEL", key))])
        for node in (old, new):
            node.call("CLUSTER", "SETSLOT", slot, "NODE", old_id)
        store.close()


def test_a_push_to_a_half_moved_slot_is_unreachable_and_changes_nothing(
    own_cluster: ValkeyCluster, store: RedisStore, shape: Shape
) -> None:
    """TRYAGAIN: one of a bucket's keys has moved, and the other has not."""
    bucket = by_node(store, own_cluster.nodes[0])[0][0]
    old, new = own_cluster.nodes
    pusher = Pusher(bucket, BUCKETS)
    store.push([pusher.next()])
    push = pusher.next()
    marks, log = (f"{{{shape.model}:{bucket}}}:{name}" for name in ("marks", "log"))
    slot = key_slot(marks.encode())
    old_id, new_id = old.call("CLUSTER", "MYID"), new.call("CLUSTER", "MYID")
    new.call("CLUSTER", "SETSLOT", slot, "IMPORTING", old_id)
    old.call("CLUSTER", "SETSLOT", slot, "MIGRATING", new_id)
    host, port = new.address.split(":")
    old.call("MIGRATE", host, port, marks, 0, 5000)
    [answer] = store.push([push])
    assert type(answer) is Unreachable
    old.call("MIGRATE", host, port, log, 0, 5000)
    [answer] = store.push([push])
    assert isinstance(answer, BucketAnswer)
    assert answer.version == 2
    for node in (new, old):
        node.call("CLUSTER", "SETSLOT", slot, "NODE", new_id)
    [answer] = store.push([push])
    assert isinstance(answer, BucketAnswer)
    assert answer.covers(push.spans)
    assert answer.version == 2


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
def test_a_wrong_redis_address_is_named_with_its_setting(scheme: str) -> None:
    with pytest.raises(Unreachable, match=r"--redis / HEADRACE_REDIS.*127\.0\.0\.1:1\b"):
        open_store(f"{scheme}://user:secret@127.0.0.1:1", "m")


def test_a_redis_url_of_the_wrong_kind_names_the_right_scheme(
    valkey: str, valkey_node: str
) -> None:
    with pytest.raises(StoreError, match=r"expected redis\+cluster://"):
        open_store(valkey.replace("+cluster", "").partition(",")[0], "m")
    with pytest.raises(StoreError, match=r"expected redis://"):
        open_store(valkey_node.replace("redis://", "redis+cluster://"), "m")


def test_a_redis_password_is_used_and_never_shown(valkey_node: str, shape: Shape) -> None:
    url = valkey_node.replace("redis://", "redis://loser:hunter2@")
    with pytest.raises(AccessRefused) as refusal:
        open_store(url, shape.model)
    shown = f"{refusal.value!r} {refusal.value} {refusal.value.__cause__!r} {parse_address(url)!r}"
    assert "hunter2" not in shown
    admin = redis.Redis.from_url(valkey_node)
    admin.acl_setuser(
        "winner", enabled=True, passwords=["+p@ss:w/rd"], keys="*", commands=["+@all"]
    )
    try:
        good = valkey_node.replace("redis://", "redis://winner:p%40ss%3Aw%2Frd@")
        store = open_store(good, shape.model)
        store.create(shape)
        [answer] = store.push([Push(0, (OffsetSpan(SOURCE, 0, 1),), b"nonce", b"")])
        assert isinstance(answer, BucketAnswer)
        store.close()
    finally:
        admin.acl_deluser("winner")
        admin.close()


@pytest.mark.parametrize(
    ("url", "hosts", "cluster"),
    [
        ("redis://h", (("h", 6379),), False),
        ("redis://h:1/3", (("h", 1),), False),
        ("redis+cluster://a:1,b:2", (("a", 1), ("b", 2)), True),
        ("rediss+cluster://u:p@[::1]:7,b", (("::1", 7), ("b", 6379)), True),
    ],
)
def test_a_redis_url_is_parsed_into_hosts_and_scheme(
    url: str, hosts: tuple[tuple[str, int], ...], cluster: bool
) -> None:
    address = parse_address(url)
    assert (address.hosts, address.cluster) == (hosts, cluster)
    assert address.tls == url.startswith("rediss")


@pytest.mark.parametrize(
    "url", ["http://h", "h:1", "redis://", "redis://h:x", "redis://a,b", "redis+cluster://a/1", ""]
)
def test_a_url_that_is_not_of_redis_is_refused_with_its_setting(url: str) -> None:
    with pytest.raises(StoreError, match="--redis / HEADRACE_REDIS: expected"):
        parse_address(url)


def test_every_error_of_the_redis_client_is_translated() -> None:
    def below(kind: type[Exception]) -> Iterator[type[Exception]]:
        yield kind
        for each in kind.__subclasses__():
            yield from below(each)

    passing = (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.ClusterDownError)
    final = (exceptions.AuthenticationError, exceptions.AuthorizationError)
    for kind in below(exceptions.RedisError):
        # without __init__, which may need a server's reply
        error: Exception = Exception.__new__(kind, "said something")
        meaning = translated(error, "node:1")
        assert "node:1" in str(meaning), kind
        if issubclass(kind, final):
            assert type(meaning) is AccessRefused, kind
        elif issubclass(kind, passing):
            assert type(meaning) is Unreachable, kind
    assert type(translated(ConnectionResetError("by peer"), "node:1")) is Unreachable
    assert type(translated(TimeoutError("timed out"), "node:1")) is Unreachable
    assert type(translated(redis.ResponseError("ERR what?"), "node:1")) is StoreError
