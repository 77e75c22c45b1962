"""The store over TLS: its laws, and refusals of wrong certificates and URLs."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.deploy.local.services.ports import free_port
from headrace.deploy.local.services.waiting import wait_until
from headrace.pserver.errors import StoreError, Unreachable
from headrace.pserver.inspection.model_survey import survey
from headrace.pserver.redis_backend.address import parse_address, with_login, without_login
from headrace.pserver.redis_backend.node_connection import Call
from headrace.pserver.redis_backend.redis_store import open_store
from headrace.pserver.store import BucketAnswer, Shape
from tests.pserver.laws.keeper_laws import KeeperLaws
from tests.pserver.laws.store_world import BUCKETS, World
from tests.pserver.laws.store_worlds import RedisWorld
from tests.pserver.redis_backend.access_grants import PASSWORD, grant
from tests.pserver.redis_backend.tls import (
    Certificates,
    TlsNode,
    make_certificates,
    missing_for_tls,
)
from tests.pserver.rows.entries import WIDTH, Pusher

needs_tls = pytest.mark.skipif(missing_for_tls() is not None, reason=str(missing_for_tls()))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def tls_node(
    certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TlsNode]:
    node = TlsNode(tmp_path_factory.mktemp("tls") / "node", certificates)
    try:
        node.wait_ready()
        yield node
    finally:
        node.stop()


@needs_tls
class TestOverTls(KeeperLaws):
    """Pushes, rows, folds and trims cross a connection whose bytes travel in records of TLS."""

    @pytest.fixture
    def world(self, tls_node: TlsNode, fresh_name: Callable[[str], str]) -> Iterator[World]:
        world = RedisWorld(tls_node.url, fresh_name("tls"))
        yield world
        world.store.close()


@needs_tls
@pytest.mark.servers
def test_a_cluster_is_found_and_used_over_tls(
    certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("tls-cluster")
    words = ("--cluster-enabled", "yes", "--tls-cluster", "yes")
    buses = free_port(), free_port()
    nodes = [
        TlsNode(directory / str(number), certificates, *words, "--cluster-port", str(bus))
        for number, bus in enumerate(buses)
    ]
    try:
        for number, node in enumerate(nodes):
            node.wait_ready()
            with node.client() as client:
                client.execute_command(
                    "CLUSTER", "ADDSLOTSRANGE", 8192 * number, 8192 * number + 8191
                )
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        with nodes[0].client() as client:
            client.execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[1].port, buses[1])
        assert wait_until(lambda: all(_joined(node) for node in nodes), 30)
        url = nodes[0].url.replace("rediss://", "rediss+cluster://")
        store = open_store(url, "m")
        store.create(Shape("m", BUCKETS, WIDTH, "fingerprint", "spec"))
        pushes = [Pusher(bucket, BUCKETS).next() for bucket in range(BUCKETS)]
        assert all(isinstance(answer, BucketAnswer) for answer in store.push(pushes))
        seen = survey(store, "m")
        assert [node.name for node in seen.nodes] == sorted(node.address for node in nodes)
        assert all(node.answers for node in seen.nodes)
        store.close()
    finally:
        for node in nodes:
            node.stop()


def _joined(node: TlsNode) -> bool:
    with node.client() as client:
        info = client.execute_command("CLUSTER", "INFO").decode()
    return "cluster_state:ok" in info and "cluster_known_nodes:2" in info


@needs_tls
def test_a_client_without_certificate_or_with_another_authority_gets_no_answer(
    tls_node: TlsNode, certificates: Certificates
) -> None:
    bare = f"rediss://{tls_node.address}"
    with pytest.raises(Unreachable, match="ssl_ca_certs"):  # the system does not trust it
        open_store(bare, "m")
    with pytest.raises(Unreachable, match=tls_node.address):
        open_store(f"{bare}?ssl_ca_certs={certificates.authority}", "m")
    with pytest.raises(Unreachable, match=tls_node.address):
        open_store(tls_node.url.replace("rediss://", "redis://").partition("?")[0], "m")


@needs_tls
def test_a_certificate_must_name_the_host_unless_the_url_says_otherwise(tls_node: TlsNode) -> None:
    elsewhere = tls_node.url.replace("127.0.0.1", "localhost")
    with pytest.raises(Unreachable, match="not valid for 'localhost'"):
        open_store(elsewhere, "m")
    open_store(f"{elsewhere}&ssl_check_hostname=false", "m").close()


@needs_tls
def test_redis_accepts_the_printed_acl_users(
    tls_node: TlsNode, fresh_name: Callable[[str], str]
) -> None:
    model = fresh_name("tls-users")
    operator = open_store(grant(tls_node.url, "operator", model), model)
    operator.create(Shape(model, BUCKETS, WIDTH, "fingerprint", "spec"))
    learner = open_store(grant(tls_node.url, "learner", model), model)
    [answer] = learner.push([Pusher(0, BUCKETS).next()])
    assert isinstance(answer, BucketAnswer)
    [refused] = learner.nodes.run([Call(b"", ("FLUSHALL",))])
    assert isinstance(refused, StoreError)
    operator.drop()
    for store in (operator, learner):
        store.close()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://h?ssl_ca_certs=/ca", "rediss:// for ssl_ca_certs"),
        ("rediss://h?ssl_keyfile=/k", "ssl_certfile beside ssl_keyfile"),
        ("rediss://h?ssl_check_hostname=perhaps", "true or false"),
        ("rediss://h?ssl_cert_reqs=none", "only ssl_ca_certs, ssl_certfile"),
        ("redis://u:hunter2#@h", "%23"),
        ("redis://u:hun/ter2@h", "%2F"),
        ("redis://u:hunter2", "an invalid port"),
        ("redis://u:hunter2[@h", "a URL"),
        ("redis://u:hunter2\u2100@h", "a URL"),
    ],
)
def test_an_invalid_redis_url_is_refused_without_showing_its_password(
    url: str, message: str
) -> None:
    with pytest.raises(StoreError) as refusal:
        parse_address(url)
    assert message in str(refusal.value)
    shown = f"{refusal.value!r} {refusal.value.__cause__!r}"
    assert not any(part in shown for part in ("hunter2", "hun", "ter2"))


def test_a_missing_tls_file_is_named_before_any_connection(tmp_path: Path) -> None:
    missing = tmp_path / "ca.crt"
    with pytest.raises(StoreError, match=f"ssl_ca_certs, got {missing}"):
        open_store(f"rediss://127.0.0.1:1?ssl_ca_certs={missing}", "m")


def test_user_and_password_are_added_to_a_redis_url_without_them() -> None:
    odd = "p@/?#:[w"
    for url in ("redis://h", "redis+cluster://a:1,b:2", "rediss://me@h?ssl_certfile=/c"):
        found = parse_address(with_login(url, "me", odd))
        assert (found.user, found.password) == ("me", odd)
        assert found.hosts == parse_address(url).hosts
    kept = parse_address(with_login("redis://you:yours@h", "me", odd))
    assert (kept.user, kept.password) == ("you", "yours")
    assert with_login("redis://h:1/2", None, None) == "redis://h:1/2"
    assert parse_address(with_login("redis://h", None, "x")).password == "x"


def test_a_redis_url_is_shown_without_user_and_password() -> None:
    assert without_login("redis+cluster://me:x@a:1,[::1]:2") == "redis+cluster://a:1,[::1]:2"
    assert without_login("rediss://:x@h:1/3?ssl_ca_certs=/ca") == "rediss://h:1/3"


def test_no_representation_of_a_connected_store_shows_the_password(
    valkey_node: str, fresh_name: Callable[[str], str]
) -> None:
    model = fresh_name("shown")
    url = grant(valkey_node, "operator", model)
    store = open_store(url, model)
    try:
        [node] = store.nodes._nodes.values()
        connection = node._pool.get_connection()
        node._pool.release(connection)
        shown = (store, store.nodes, node, node._pool, connection, parse_address(url))
        assert PASSWORD not in " ".join(f"{each!r} {each}" for each in shown)
    finally:
        store.close()
