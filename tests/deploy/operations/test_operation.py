"""`headrace pserver inspect`, `doctor` and `drop` on real servers, as an operator runs them."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.deploy.cli.pserver import pserver_commands, pserver_snapshots
from headrace.deploy.models.shipped import path_of
from headrace.deploy.operations.examples_topic import topic_bounds
from headrace.ingest.kafka.producer import KafkaWriter
from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.reading.consumer import KafkaReader
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import TopicSpec, ensure_topics, examples_topic
from headrace.learner.spec.model_spec import ModelSpec, load_spec
from headrace.pserver.inspection import buckets, model_survey
from headrace.pserver.inspection.model_survey import Survey
from headrace.pserver.keeper.bucket_lease import FoldPolicy
from headrace.pserver.keeper.keeper import Keeper
from headrace.pserver.redis_backend.node_connection import Call
from headrace.pserver.redis_backend.redis_store import RedisStore, StoreSettings, open_store
from headrace.pserver.replica.replica import Replica
from headrace.pserver.rows.deltas import RowDeltas
from headrace.pserver.store import OffsetSpan, Push, Shape
from headrace.runtime.termination import UNREACHABLE
from tests.deploy.in_process import Commands
from tests.pserver.rows.entries import Pusher, blob_of, deltas_of
from tests.running_server import running_server
from tests.valkey_cluster import ValkeyCluster

BUCKETS = 8
ROWS = 9  # of each bucket, once its pusher has pushed often enough


@pytest.fixture(scope="module")
def cluster(stack_directory: Path) -> Iterator[ValkeyCluster]:
    """Of this module's own: its settings are spoilt and its nodes killed."""
    cluster = ValkeyCluster(stack_directory / "operation", primaries=2, remove=stack_directory)
    with running_server(cluster):
        yield cluster


@pytest.fixture
def spec(tmp_path: Path, fresh_name: Callable[[str], str]) -> ModelSpec:
    path = tmp_path / "model.toml"
    name = fresh_name("operation")
    path.write_text(path_of("demo").read_text().replace('name = "demo"', f'name = "{name}"'))
    return load_spec(path)


@pytest.fixture
def to(spec: ModelSpec, tmp_path: Path, cluster: ValkeyCluster) -> tuple[str, ...]:
    """The options that every command here has."""
    return ("--model", str(tmp_path / "model.toml"), "--redis", cluster.url)


@pytest.fixture
def store(spec: ModelSpec, cluster: ValkeyCluster) -> Iterator[RedisStore]:
    """A cluster with a model that has learned and was folded. It has no keeper."""
    store = open_store(cluster.url, spec.name, StoreSettings(sub_hashes=4))
    shape = Shape(spec.name, BUCKETS, spec.width, spec.fingerprint, spec.text)
    store.create(shape)
    pushers = [Pusher(bucket, BUCKETS) for bucket in range(BUCKETS)]
    for _ in range(30):
        store.push([pusher.next() for pusher in pushers])
    ticks = iter(range(0, 10**9, 1000))
    keeping = FoldPolicy(keep_ms=0)
    keeper = Keeper(store, shape, name="tender", keeping=keeping, now_ms=ticks.__next__,
                    draw_nonce=lambda: b"12345678")  # fmt: skip
    while keeper.leased != list(range(BUCKETS)) or keeper.step():
        keeper.step()
    keeper.release()
    yield store
    store.close()


def lose(store: RedisStore, bucket: int) -> None:
    """As a shard that comes back empty."""
    names = ("marks", "log", *(f"rows:{n}" for n in range(4)))
    keys = [store.key(bucket, name) for name in names]
    store.nodes.run([Call(key, ("DEL", key)) for key in keys])


@contextmanager
def spoilt(cluster: ValkeyCluster, name: str, value: str | int) -> Iterator[None]:
    """A setting of the first node is another for a while."""
    node = cluster.nodes[0]
    before = node.call("CONFIG", "GET", name).partition("\n")[2]
    node.call("CONFIG", "SET", name, value)
    try:
        yield
    finally:
        node.call("CONFIG", "SET", name, before)


def inspected(headrace: Commands, *to: str) -> tuple[int, dict[str, Any]]:
    ended = headrace("pserver", "inspect", *to, "--json")
    return ended.code, json.loads(ended.out)


def diagnosed(headrace: Commands, *to: str) -> tuple[int, list[dict[str, str]]]:
    ended = headrace("pserver", "doctor", *to, "--json")
    return ended.code, json.loads(ended.out)["findings"]


def test_inspect_counts_the_rows_of_a_replica_without_copying_them(
    headrace: Commands, to: tuple[str, ...], store: RedisStore
) -> None:
    replica = Replica(store, store.shape())
    while not replica.complete:
        replica.poll()
    code, found = inspected(headrace, *to)
    assert code == 0
    assert found["complete"]
    assert found["rows"] == len(replica.table)
    assert found["shape"]["buckets"] == BUCKETS
    for bucket, each in enumerate(found["buckets"]):
        assert each["bucket"] == bucket
        assert each["node"] == store.node_of(bucket)
        assert each["version"] == replica.position(bucket).version == 30
        assert each["rows"] == ROWS
        assert each["keeper"] is None
        assert each["lag"] is None
        assert each["log_entries"] == 1
        assert each["age_s"] > 0
        sizes = store.nodes.run(
            [Call(key, ("MEMORY", "USAGE", key))
             for key in (store.key(bucket, name)
                         for name in ("log", *(f"rows:{n}" for n in range(4))))]
        )  # fmt: skip
        assert each["bytes"] == sum(size or 0 for size in sizes)  # few sub-hashes: all are asked


def test_inspect_shows_a_table_with_a_summary(
    headrace: Commands, to: tuple[str, ...], store: RedisStore
) -> None:
    store.claim(3, "keeper-7:0102", 60_000)
    ended = headrace("pserver", "inspect", *to)
    assert ended.code == 0
    lines = ended.out.splitlines()
    assert f"{BUCKETS} buckets" in lines[0]
    assert f"{ROWS * BUCKETS:,} rows; " in lines[0]
    assert "on 2 nodes, the fullest with " in lines[0]
    assert "--kafka / HEADRACE_KAFKA" in ended.out  # why the lag is not known
    assert "no Kafka" in lines[-1]
    assert [line.split()[0] for line in lines[-BUCKETS:]] == [str(b) for b in range(BUCKETS)]
    assert "keeper-7 (" in lines[-BUCKETS + 3]
    store.release(3, "keeper-7:0102")


@pytest.mark.usefixtures("store")
def test_a_limit_on_rows_is_set_shown_and_removed(
    headrace: Commands, to: tuple[str, ...], spec: ModelSpec
) -> None:
    rows, name = ROWS * BUCKETS, spec.name
    assert headrace("pserver", "limit", *to).out == f"{name}: no limit on rows\n"
    assert inspected(headrace, *to)[1]["row_limit"] is None
    ended = headrace("pserver", "limit", *to, "--rows", str(rows))
    assert (ended.code, ended.out) == (0, f"{name}: at most {rows:,} rows\n")
    assert inspected(headrace, *to)[1]["row_limit"] == rows
    shown = headrace("pserver", "inspect", *to).out.splitlines()[0]
    assert f"100% of the limit of {rows:,} rows" in shown
    findings = diagnosed(headrace, *to)[1]
    assert [each["subject"] for each in findings if "the limit of" in each["expected"]] == ["model"]
    assert headrace("pserver", "limit", *to, "--rows", "0").out == f"{name}: no limit on rows\n"
    assert inspected(headrace, *to)[1]["row_limit"] is None


def test_inspect_counts_unfolded_rows_once(
    headrace: Commands, to: tuple[str, ...], store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Pusher(6, BUCKETS, seed=1)
    new = deltas_of(6, BUCKETS, known.dice, rows=1)
    ids = np.array([6 << 61 | 5, 6 << 61 | 6], np.uint64)
    pair = RowDeltas._make([ids, *(np.repeat(column, 2, axis=0) for column in new[1:])])
    for start, blob in ((0, known.next().blob), (1, blob_of(pair)), (2, blob_of(pair))):
        store.push([Push(6, (OffsetSpan("late/0", start, start + 1),), bytes([start] * 8), blob)])
    _, found = inspected(headrace, *to)
    assert found["rows"] == ROWS * BUCKETS + 2
    assert (found["buckets"][6]["rows"], found["buckets"][6]["rows_in_log"]) == (ROWS + 2, 2)
    assert f"{ROWS * BUCKETS + 2:,} rows (2 of them" in headrace("pserver", "inspect", *to).out
    monkeypatch.setattr(buckets, "MOST_BYTES", 1)
    _, found = inspected(headrace, *to)
    assert (found["buckets"][6]["rows"], found["buckets"][6]["rows_in_log"]) == (ROWS, None)
    assert "are not counted" in headrace("pserver", "inspect", *to).out


def test_an_unreachable_kafka_is_in_the_result_and_not_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = topic_bounds(KafkaSettings("127.0.0.1:1", connect_timeout_s=0.3), "demo")
    assert topic.trouble is not None
    assert "127.0.0.1:1" in topic.trouble
    assert topic.lag({"uuid/0": 3}) is None
    assert caplog.records == []


def test_lag_is_the_distance_from_the_marks_to_the_end_of_the_topic(
    headrace: Commands, to: tuple[str, ...], store: RedisStore, spec: ModelSpec, kafka: str
) -> None:
    settings = KafkaSettings(kafka)
    topic = examples_topic(spec.name)
    ensure_topics(settings, [TopicSpec(topic, 1)])
    reader = KafkaReader(settings, None, [topic])
    identity = reader.topic_id(topic)
    reader.close()
    code, findings = diagnosed(headrace, *to, "--kafka", kafka)
    assert code == 2  # the marks there are of no topic in this Kafka
    assert "--accept-topic" in findings[0]["remedy"]
    store.push(
        [Push(2, (OffsetSpan(f"{identity}/0", 0, 5),), b"12345678", Pusher(2, BUCKETS).next().blob)]
    )
    _, found = inspected(headrace, *to, "--kafka", kafka)
    assert [each["lag"] for each in found["buckets"]] == [0] * BUCKETS
    _, findings = diagnosed(headrace, *to, "--kafka", kafka)
    [ahead] = [each for each in findings if each["where"] == "bucket 2"]
    assert (ahead["subject"], ahead["severity"]) == ("kafka", "broken")


def test_commands_that_look_at_servers_name_each_that_they_wait_for(
    headrace: Commands,
    to: tuple[str, ...],
    store: RedisStore,
    kafka: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = str(tmp_path / "shelf")
    servers, logs = "the servers of the store", "the logs in the store"
    awaited: list[str] = []

    @contextmanager
    def noted(what: str) -> Iterator[None]:
        awaited.append(what)
        yield

    for module in (pserver_commands, pserver_snapshots):
        monkeypatch.setattr(module, "waiting_for", noted)
    for words, expected in (
        (("snapshot", storage), [servers]),
        (("inspect", "--kafka", kafka), [f"Kafka at {kafka}", servers, logs]),
        (
            ("doctor", "--kafka", kafka, "--snapshots", storage),
            [servers, f"Kafka at {kafka}", f"the snapshots at {storage}"],
        ),
    ):
        awaited.clear()
        headrace("pserver", *words, *to)
        assert awaited == expected


def test_examples_that_arrive_during_a_survey_are_no_lag(
    headrace: Commands,
    to: tuple[str, ...],
    store: RedisStore,
    spec: ModelSpec,
    kafka: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings, topic, look = KafkaSettings(kafka), examples_topic(spec.name), model_survey.survey
    ensure_topics(settings, [TopicSpec(topic, 1)])

    def survey_while_examples_arrive(*arguments: Any) -> Survey:
        found = look(*arguments)
        writer = KafkaWriter(settings)
        for _ in range(5):
            writer.send(Source(topic, 0), b"example")
        writer.close()
        return found

    monkeypatch.setattr(model_survey, "survey", survey_while_examples_arrive)
    _, found = inspected(headrace, *to, "--kafka", kafka)
    assert [each["lag"] for each in found["buckets"]] == [0] * BUCKETS
    monkeypatch.undo()
    _, found = inspected(headrace, *to, "--kafka", kafka)
    assert [each["lag"] for each in found["buckets"]] == [5] * BUCKETS


def test_inspect_shows_a_missing_bucket_beside_the_others(
    headrace: Commands, to: tuple[str, ...], store: RedisStore
) -> None:
    lose(store, 5)
    code, found = inspected(headrace, *to)
    assert code == 1
    assert "restore" in found["buckets"][5]["trouble"]
    assert [each["rows"] for each in found["buckets"] if not each["trouble"]] == [ROWS] * 7
    code, findings = diagnosed(headrace, *to)
    assert code == 2
    [missing] = [each for each in findings if each["severity"] == "broken"]
    assert (missing["where"], missing["subject"]) == ("bucket 5", "buckets")
    assert "headrace pserver restore" in missing["remedy"]


@pytest.mark.parametrize("dead", [0, 1])
def test_inspect_shows_only_the_buckets_of_a_dead_node_as_unreachable(
    headrace: Commands, to: tuple[str, ...], store: RedisStore, cluster: ValkeyCluster, dead: int
) -> None:
    """One of the two has the model's shape: then the buckets are known by their keys."""
    cluster.kill(dead)
    try:
        code, found = inspected(headrace, *to)
        assert code == 1
        assert len(found["buckets"]) == BUCKETS
        for bucket, each in enumerate(found["buckets"]):
            if store.node_of(bucket) == cluster.nodes[dead].address:
                assert cluster.nodes[dead].address in each["trouble"]
            else:
                assert each["rows"] == ROWS
        code, findings = diagnosed(headrace, *to)
        assert code == 2
        assert [each["where"] for each in findings if each["subject"] == "servers"] == [
            cluster.nodes[dead].address
        ]
        assert headrace("pserver", "drop", *to, "--yes").code == UNREACHABLE
    finally:
        cluster.restart(dead)


WRONG_SETTINGS: dict[str, tuple[str | int, str]] = {
    "maxmemory-policy": ("allkeys-lru", "memory"),
    "appendonly": ("no", "persistence"),
    "repl-backlog-size": (1 << 20, "replication"),
    "hash-max-listpack-value": (16, "layout"),
    "hash-max-listpack-entries": (1, "layout"),
    "cluster-require-full-coverage": ("yes", "cluster"),
}


def test_doctor_finds_each_wrong_setting_of_a_server_and_nothing_else(
    headrace: Commands, to: tuple[str, ...], store: RedisStore, cluster: ValkeyCluster
) -> None:
    with ExitStack() as stack:
        for name, (value, _) in WRONG_SETTINGS.items():
            stack.enter_context(spoilt(cluster, name, value))
        code, findings = diagnosed(headrace, *to)
    assert code == 2
    wrong = [each for each in findings if each["severity"] != "note"]
    assert {each["subject"] for each in wrong} == {each for _, each in WRONG_SETTINGS.values()}
    layout = " ".join(each["remedy"] for each in wrong if each["subject"] == "layout")
    assert "hash-max-listpack-value" in layout and "multiple of" in layout
    ended = headrace("pserver", "doctor", *to)
    assert ended.code == 0, ended.out
    assert "0 broken, 0 warnings" in ended.out
    assert "well: servers, functions, persistence" in ended.out


def test_doctor_finds_functions_missing_and_does_not_load_them(
    headrace: Commands, to: tuple[str, ...], store: RedisStore, cluster: ValkeyCluster
) -> None:
    cluster.nodes[1].call("FUNCTION", "FLUSH", "SYNC")
    for _ in range(2):
        code, findings = diagnosed(headrace, *to)
        assert code == 1
        [found] = [each for each in findings if each["subject"] == "functions"]
        assert found["where"] == cluster.nodes[1].address
    assert headrace("pserver", "init", *to, "--buckets", str(BUCKETS)).code == 0
    assert diagnosed(headrace, *to)[0] == 0


def test_a_model_is_dropped_after_its_name_is_typed(
    headrace: Commands, to: tuple[str, ...], store: RedisStore, spec: ModelSpec,
    cluster: ValkeyCluster,
) -> None:  # fmt: skip
    ended = headrace("pserver", "drop", *to, "--force", typed="yes\n")
    assert ended.code == 2
    assert "was not removed" in ended.err
    assert inspected(headrace, *to)[0] == 0
    ended = headrace("pserver", "drop", *to, "--force", typed=f"{spec.name}\n")
    assert ended.code == 0
    assert f"{BUCKETS} buckets, {BUCKETS * ROWS} rows" in ended.out
    for node in cluster.nodes:
        assert node.call("KEYS", f"*{spec.name}*") == ""
    ended = headrace("pserver", "drop", *to, "--yes")
    assert ended.code == 2
    assert "got none" in ended.err


def test_a_drop_removes_leftovers_of_an_interrupted_one_and_a_model_without_shape(
    headrace: Commands, to: tuple[str, ...], store: RedisStore, spec: ModelSpec,
    cluster: ValkeyCluster,
) -> None:  # fmt: skip
    lose(store, 0)
    shape = f"{{{spec.name}}}:shape".encode()
    store.nodes.run([Call(shape, ("DEL", shape))])
    assert headrace("pserver", "drop", *to, "--yes", "--force").code == 0
    for node in cluster.nodes:
        assert node.call("KEYS", f"*{spec.name}*") == ""
