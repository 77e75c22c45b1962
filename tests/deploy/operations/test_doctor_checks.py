"""Every check of `doctor`: silent about a store that is well, and about each fault just one thing.

No servers: the checks are pure, and what servers say of themselves is written down here.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headrace.deploy.models.shipped import path_of
from headrace.deploy.operations import doctor
from headrace.deploy.operations.check_result import SUBJECTS, Severity
from headrace.deploy.operations.examples_topic import CutLog, ExamplesBounds
from headrace.deploy.operations.model_checks import (
    LARGEST_LOG_BYTES,
    NewestSnapshot,
    check_snapshots,
)
from headrace.deploy.operations.server_checks import LEAST_BACKLOG_BYTES
from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.topics import FOREVER_MS, KafkaRetention
from headrace.learner.loop.pacing import LearnerPacing
from headrace.learner.spec.model_spec import load_spec
from headrace.pserver.errors import MissingModel, StoreError, Unreachable
from headrace.pserver.inspection.buckets import BucketSurvey
from headrace.pserver.inspection.model_survey import Survey
from headrace.pserver.inspection.nodes import ClusterMember, NodeSurvey, parse_members
from headrace.pserver.redis_backend.server_requirements import LIBRARY_VERSION
from headrace.pserver.rows.row_codec import row_bytes
from headrace.pserver.store import Shape

SPEC = load_spec(path_of("demo"))
BUCKETS = 8
GIB = 1 << 30
INFO = {
    "redis_version": "7.2.4",
    "cluster_enabled": "1",
    "cluster_state": "ok",
    "cluster_slots_assigned": "16384",
    "used_memory": str(4 * GIB),
    "maxmemory": str(10 * GIB),
    "maxmemory_policy": "noeviction",
    "total_system_memory": str(16 * GIB),
    "aof_enabled": "1",
    "aof_last_write_status": "ok",
    "aof_last_bgrewrite_status": "ok",
    "rdb_last_bgsave_status": "ok",
}
SETTINGS = {
    "save": "",
    "stop-writes-on-bgsave-error": "yes",
    "repl-backlog-size": str(LEAST_BACKLOG_BYTES),
    "client-output-buffer-limit": f"normal 0 0 0 slave {2 * GIB} {GIB} 60 pubsub 1 1 60",
    "hash-max-listpack-value": "1024",
    "hash-max-listpack-entries": "512",
    "cluster-require-full-coverage": "no",
    "cluster-node-timeout": "5000",
}
TOPIC = ExamplesBounds("examples.demo", {"uuid/0": (0, 100), "uuid/1": (10, 100)})


def node(number: int, **changes: Any) -> NodeSurvey:
    """Three primaries, 0 to 2, and their replicas, 3 to 5."""
    member = ClusterMember(
        ("10.0.0.1", 7000 + number), f"id{number}", frozenset({"master"}), "", 5461
    )
    info = dict(INFO)
    if number >= 3:
        member = member._replace(primary=f"10.0.0.1:{7000 + number - 3}", slots=0)
        info["master_link_status"] = "up"
    found = NodeSurvey(member, info=info, settings=dict(SETTINGS), functions=LIBRARY_VERSION)
    return replace(found, **changes)


def well() -> Survey:
    buckets = [
        BucketSurvey(
            number,
            f"10.0.0.1:{7000 + number % 3}",
            version=50,
            trimmed=40,
            log_bytes=1 << 20,
            keeper="k:1",
            lease_left_ms=8_000,
            rows=1000,
            rows_of_fullest=500,
            marks={"uuid/0": 90, "uuid/1": 100},
        )
        for number in range(BUCKETS)
    ]
    shape = Shape(SPEC.name, BUCKETS, SPEC.width, SPEC.fingerprint, SPEC.text)
    return Survey(SPEC.name, 0.0, [node(number) for number in range(6)], buckets, shape)


def test_doctor_has_no_finding_about_a_healthy_store() -> None:
    diagnosis = doctor.diagnose(well(), SPEC, TOPIC, NewestSnapshot("DIR", 1))
    assert list(diagnosis.findings) == []
    assert diagnosis.exit_code == 0
    assert diagnosis.well == list(SUBJECTS)


def info(**changes: str) -> Callable[[Survey], Survey]:
    """The first primary reports other facts."""
    return lambda survey: with_node(survey, 0, info={**INFO, **changes})


def setting(name: str, value: str) -> Callable[[Survey], Survey]:
    """The first primary has another setting."""
    return lambda survey: with_node(survey, 0, settings={**SETTINGS, name: value})


def with_node(survey: Survey, number: int, **changes: Any) -> Survey:
    nodes = list(survey.nodes)
    nodes[number] = replace(nodes[number], **changes)
    return replace(survey, nodes=nodes)


def with_member(number: int, **changes: Any) -> Callable[[Survey], Survey]:
    def change(survey: Survey) -> Survey:
        member = survey.nodes[number].member._replace(**changes)
        return with_node(survey, number, member=member)

    return change


def bucket(**changes: Any) -> Callable[[Survey], Survey]:
    """Bucket 5 is different."""

    def change(survey: Survey) -> Survey:
        buckets = list(survey.buckets)
        buckets[5] = replace(buckets[5], **changes)
        return replace(survey, buckets=buckets)

    return change


def of_node(number: int, **changes: Any) -> Callable[[Survey], Survey]:
    return lambda survey: with_node(survey, number, **changes)


B, W, N = Severity.BROKEN, Severity.WARNING, Severity.NOTE
FAULTS: list[tuple[str, Callable[[Survey], Survey], Severity, str, str, str]] = [
    ("primary down", of_node(0, trouble="refused"), B, "servers", ":7000", "restart it"),
    ("replica down", of_node(3, trouble="refused"), W, "servers", ":7003", "restart it"),
    ("old server", info(redis_version="6.2.1"), B, "servers", ":7000", "upgrade"),
    ("loading", info(loading="1"), B, "servers", ":7000", "wait"),
    ("settings unseen", of_node(0, settings=None), N, "servers", ":7000", "role operator"),
    ("no functions", of_node(0, functions=0), W, "functions", ":7000", "pserver init"),
    ("old functions", of_node(1, functions=1), W, "functions", ":7001", "pserver init"),
    ("new functions", of_node(1, functions=99), B, "functions", ":7001", "upgrade headrace"),
    ("functions unseen", of_node(1, functions=None), N, "functions", ":7001", "role operator"),
    ("replica without", of_node(3, functions=0), W, "functions", ":7003", "10.0.0.1:7000"),
    ("evicts", info(maxmemory_policy="allkeys-lru"), B, "memory", ":7000",
     "CONFIG SET maxmemory-policy noeviction"),
    ("would evict", info(maxmemory_policy="volatile-ttl", maxmemory="0"), W, "memory", ":7000",
     "CONFIG SET maxmemory-policy noeviction"),
    ("tight", info(used_memory=str(9 * GIB)), W, "memory", ":7000", "raise maxmemory"),
    ("full", info(used_memory=str(10 * GIB)), B, "memory", ":7000", "raise maxmemory"),
    ("no limit", info(maxmemory="0"), N, "memory", ":7000", "CONFIG SET maxmemory"),
    ("no limit, much used", info(maxmemory="0", used_memory=str(9 * GIB)), W, "memory", ":7000",
     "CONFIG SET maxmemory"),
    ("nothing kept", info(aof_enabled="0"), B, "persistence", ":7000", "appendonly yes"),
    ("disk full", info(aof_last_write_status="err"), B, "persistence", ":7000", "free disk space"),
    ("no rewrite", info(aof_last_bgrewrite_status="err"), W, "persistence", ":7000",
     "BGREWRITEAOF"),
    ("small backlog", setting("repl-backlog-size", "1048576"), W, "replication", ":7000",
     "CONFIG SET repl-backlog-size 512mb"),
    ("small buffer", setting("client-output-buffer-limit", "replica 268435456 67108864 60"), W,
     "replication", ":7000", "CONFIG SET client-output-buffer-limit"),
    ("link down", of_node(3, info={**INFO, "master_link_status": "down"}), W, "replication",
     ":7003", "logs"),
    ("near its limit on rows", lambda survey: replace(survey, row_limit=1000 * BUCKETS + 1), W,
     "model", SPEC.name, "headrace pserver limit --rows"),
    ("clock ahead", of_node(2, ahead_ms=5000.0, unsure_ms=1.0), W, "clocks", ":7002", "NTP"),
    ("cluster down", info(cluster_state="fail"), B, "cluster", ":7000", "restart the failed"),
    ("slots lost", info(cluster_slots_assigned="16000"), B, "cluster", ":7000", "ADDSLOTSRANGE"),
    ("covers all or nothing", setting("cluster-require-full-coverage", "yes"), W, "cluster",
     ":7000", "CONFIG SET cluster-require-full-coverage no"),
    ("failed primary", with_member(0, flags=frozenset({"master", "fail"})), B, "cluster", ":7000",
     "CLUSTER FORGET"),
    ("suspected replica", with_member(3, flags=frozenset({"slave", "fail?"})), W, "cluster",
     ":7003", "CLUSTER FORGET"),
    ("moving slots", with_member(1, moving=2), N, "cluster", ":7001", "wait for the end"),
    ("no replica", with_member(3, primary="10.0.0.1:7001"), W, "cluster", ":7000",
     "CLUSTER REPLICATE"),
    ("slow failover", setting("cluster-node-timeout", "3600000"), W, "cluster", ":7000",
     "cluster-node-timeout"),
    ("long rows", setting("hash-max-listpack-value", "16"), W, "layout", ":7000",
     "CONFIG SET hash-max-listpack-value"),
    ("full sub-hashes", bucket(rows_of_fullest=513), W, "layout", "bucket 5", "multiple of"),
    ("missing", bucket(missing=True), B, "buckets", "bucket 5", "pserver restore"),
    ("half restored", bucket(missing=True, loading=True), B, "buckets", "bucket 5", "again"),
    ("away", bucket(trouble="refused"), B, "buckets", "bucket 5", "restart the node"),
    ("no keeper for long", bucket(lease_left_ms=-61_000), W, "keepers", "bucket 5",
     "pserver keep"),
    ("never a keeper", bucket(lease_left_ms=None), W, "keepers", "bucket 5", "pserver keep"),
    ("large log", bucket(log_bytes=20 << 20), W, "keepers", "bucket 5", "pserver keep"),
    ("log at its end", bucket(log_bytes=65 << 20), B, "keepers", "bucket 5", "pserver keep"),
    ("ahead of Kafka", bucket(marks={"uuid/0": 101, "uuid/1": 100}), B, "kafka", "bucket 5",
     "start a new model"),
    ("deleted unlearned", bucket(marks={"uuid/0": 90, "uuid/1": 9}), B, "kafka", "bucket 5",
     "retention.ms"),
    ("never learned, deleted", bucket(marks={"uuid/0": 90}), B, "kafka", "bucket 5",
     "retention.ms"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "severity", "subject", "where", "remedy"),
    [fault[1:] for fault in FAULTS],
    ids=[fault[0] for fault in FAULTS],
)
def test_doctor_finds_a_fault_with_its_severity_place_and_remedy(
    change: Callable[[Survey], Survey], severity: Severity, subject: str, where: str, remedy: str
) -> None:
    diagnosis = doctor.diagnose(change(well()), SPEC, TOPIC)
    found = [each for each in diagnosis.findings if each.subject == subject]
    assert [(each.severity, each.where.endswith(where)) for each in found][:1] == [(severity, True)]
    assert remedy in found[0].remedy
    assert diagnosis.exit_code >= severity
    # a fault of one subject causes no finding of another
    others = {each.subject for each in diagnosis.findings} - {subject}
    assert others <= ({"memory"} if "maxmemory-policy" in remedy else set()), diagnosis.findings


@pytest.mark.parametrize(
    ("begun_ms", "got"), [(0, "none"), (1_000, "one from 28 hours ago"), (10_000_000, "")]
)
def test_doctor_reports_a_missing_or_an_old_snapshot(begun_ms: int, got: str) -> None:
    looked = replace(well(), at_ms=28 * 3_600_000 + 1_000)
    found = list(check_snapshots(looked, NewestSnapshot("DIR", begun_ms)))
    assert [each.found for each in found] == ([got] if got else [])


@pytest.mark.parametrize(
    ("days", "severities"),
    [
        ((7, 7, 28), []),
        ((1, 7, 28), [Severity.NOTE]),  # the joiner goes on after its examples
        ((1, 7, 2), [Severity.WARNING]),
        ((30, 30, 7), []),
        ((7, None, 28), [Severity.WARNING]),
        ((7, None, None), [Severity.NOTE]),
    ],
    ids=["defaults", "offsets", "offsets and examples", "examples", "events", "all but offsets"],
)
def test_doctor_compares_the_retention_of_events_and_of_positions(
    days: tuple[int | None, ...], severities: list[Severity]
) -> None:
    offsets_ms, events_ms, examples_ms = (
        FOREVER_MS if each is None else each * 86_400_000 for each in days
    )
    retention = KafkaRetention(offsets_ms, {"clicks": events_ms, TOPIC.topic: examples_ms})
    found = doctor.diagnose(well(), SPEC, replace(TOPIC, retention=retention)).findings
    assert [each.severity for each in found] == severities
    assert all("offsets.retention.minutes" in each.remedy for each in found)


def test_doctor_shows_the_difference_to_a_model_of_another_spec() -> None:
    survey = well()
    assert survey.shape is not None
    other = replace(
        survey.shape, fingerprint="else", spec=SPEC.text.replace("alpha = ", "alpha = 1")
    )
    [found] = doctor.diagnose(replace(survey, shape=other), SPEC, None).findings
    assert (found.severity, found.subject) == (Severity.BROKEN, "model")
    assert "alpha" in found.found


@pytest.mark.parametrize(
    ("trouble", "buckets", "remedy"),
    [
        (MissingModel("none"), 0, "headrace pserver init"),
        (MissingModel("half made"), 8, "again"),
        (Unreachable("refused"), 8, "restart that node"),
    ],
)
def test_doctor_names_the_next_step_for_a_model_that_cannot_be_read(
    trouble: StoreError, buckets: int, remedy: str
) -> None:
    survey = well()
    changed = replace(survey, shape=None, trouble=trouble, buckets=survey.buckets[:buckets])
    diagnosis = doctor.diagnose(changed, SPEC, None)
    [found] = diagnosis.findings
    assert (found.severity, found.subject) == (Severity.BROKEN, "model")
    assert remedy in found.remedy
    assert ("buckets" in diagnosis.well) == bool(buckets)


def test_doctor_reports_a_recreated_topic_once_and_not_for_each_bucket() -> None:
    again = ExamplesBounds("examples.demo", {"new-uuid/0": (0, 3)})
    [found] = doctor.diagnose(well(), SPEC, again).findings
    assert found.severity == Severity.BROKEN
    assert "--accept-topic new-uuid" in found.remedy
    both = [replace(each, marks={**each.marks, "new-uuid/0": 2}) for each in well().buckets]
    assert not doctor.diagnose(replace(well(), buckets=both), SPEC, again).findings


def cut(reader: str) -> ExamplesBounds:
    return replace(TOPIC, cut=[CutLog(reader, Source("impressions", 2), 1_234)])


@pytest.mark.parametrize(
    ("topic", "where", "expected", "remedy"),
    [
        (replace(TOPIC, missing={"examples.demo/1@7": 3}), "examples.demo/1@7",
         "3 examples missing before it", "--accept-gap"),
        (cut("learner"), "impressions/2", "learner has read up to offset 1,234", "snapshot"),
        (cut("joiner"), "impressions/2", "joiner has read up to offset 1,234", "a new model"),
        (cut("scorer"), "impressions/2", "scorer has read up to offset 1,234", "--score-again"),
    ],
    ids=["missing", "learner", "joiner", "scorer"],
)  # fmt: skip
def test_doctor_names_the_place_of_lost_records_and_the_way_on(
    topic: ExamplesBounds, where: str, expected: str, remedy: str
) -> None:
    [found] = doctor.diagnose(well(), SPEC, topic).findings
    assert (found.severity, found.where) == (Severity.BROKEN, where)
    assert expected in found.expected + found.found
    assert remedy in found.remedy


def test_doctor_finds_a_bucket_restored_from_before_an_accepted_topic() -> None:
    again = ExamplesBounds("examples.demo", {"new-uuid/0": (0, 3)})
    gone_on = [replace(each, marks={**each.marks, "new-uuid/0": 2}) for each in well().buckets]
    earlier = {name: mark - 1 for name, mark in well().buckets[3].marks.items()}
    gone_on[3] = replace(gone_on[3], marks=earlier)
    found = doctor.diagnose(replace(well(), buckets=gone_on), SPEC, again).findings
    assert {(each.severity, each.subject, each.where) for each in found} == {
        (Severity.BROKEN, "kafka", "bucket 3")
    }
    assert all("--accept-topic new-uuid" in each.remedy for each in found)


def test_doctor_warns_of_an_unreachable_kafka_and_lists_an_unchecked_one() -> None:
    silent = doctor.diagnose(well(), SPEC, ExamplesBounds("examples.demo", trouble="no broker"))
    assert [each.subject for each in silent.findings] == ["kafka"]
    assert silent.exit_code == 1
    unasked = doctor.diagnose(well(), SPEC, None)
    assert unasked.exit_code == 0
    assert doctor.diagnosis_json(unasked)["not_looked_at"] == ["kafka", "snapshots"]


def test_doctor_warns_of_rdb_without_aof_and_finds_a_failed_rdb_broken() -> None:
    saving = {**SETTINGS, "save": "3600 1"}
    [found] = doctor.diagnose(
        with_node(well(), 0, info={**INFO, "aof_enabled": "0"}, settings=saving), SPEC, TOPIC
    ).findings
    assert (found.severity, found.subject) == (Severity.WARNING, "persistence")
    failing = {**INFO, "rdb_last_bgsave_status": "err"}
    [found] = doctor.diagnose(
        with_node(well(), 0, info=failing, settings=saving), SPEC, TOPIC
    ).findings
    assert "MISCONF" in found.found
    assert not doctor.diagnose(with_node(well(), 0, info=failing), SPEC, TOPIC).findings


def test_two_primaries_cannot_elect_a_replica() -> None:
    survey = well()
    few = [each for each in survey.nodes if each.name not in ("10.0.0.1:7002", "10.0.0.1:7005")]
    [found] = doctor.diagnose(replace(survey, nodes=few), SPEC, TOPIC).findings
    assert "majority" in found.expected


def test_doctor_only_misses_a_replica_of_a_single_server() -> None:
    survey = well()
    alone = replace(
        node(0, info={**INFO, "cluster_enabled": "0"}), member=ClusterMember(("10.0.0.1", 7000))
    )
    diagnosis = doctor.diagnose(replace(survey, nodes=[alone]), SPEC, TOPIC)
    assert [(each.severity, each.subject) for each in diagnosis.findings] == [(N, "replication")]
    assert diagnosis.exit_code == 0


def test_doctor_finds_the_clock_of_this_machine_if_all_servers_disagree_with_it() -> None:
    survey = well()
    nodes = [replace(each, ahead_ms=9000.0, unsure_ms=1.0) for each in survey.nodes]
    [found] = doctor.diagnose(replace(survey, nodes=nodes), SPEC, TOPIC).findings
    assert found.where == "this machine"


def test_doctor_prints_equal_findings_once_with_all_places() -> None:
    assert doctor.shortened(f"bucket {number}" for number in (0, 1, 2, 7, 9, 10)) == (
        "buckets 0-2, 7, 9-10"
    )
    assert doctor.shortened(["bucket 3"]) == "bucket 3"
    many = doctor.shortened(f"bucket {number}" for number in range(0, 40, 2))
    assert "20 in all" in many
    assert doctor.shortened(f"n:{number}" for number in range(8)).endswith("2 more")


def test_the_limits_of_doctor_equal_those_of_keepers_and_learners() -> None:
    assert LearnerPacing().log_bytes_limit == LARGEST_LOG_BYTES
    assert row_bytes(SPEC.width) < int(SETTINGS["hash-max-listpack-value"])


def test_the_lines_of_cluster_nodes_are_parsed() -> None:
    text = (
        "aaa 10.0.0.1:7000@17000,one.example myself,master - 0 0 1 connected 0-8191 9000 "
        "[9001->-bbb]\n"
        "bbb 10.0.0.2:7000@17000 master,fail - 1 2 3 disconnected 8192-8999 9001-16383\n"
        "ccc :7001@17001 slave bbb 1 2 3 connected\n"
    )
    first, second, third = parse_members(text, ("10.0.0.9", 1), {"aaa": ("one.example", 7000)})
    assert (first.name, first.slots, first.moving) == ("10.0.0.2:7000", 8191, 0)
    assert first.flags == {"master", "fail"}
    assert (second.name, second.slots, second.moving) == ("one.example:7000", 8193, 1)
    assert (third.name, third.primary) == ("10.0.0.9:7001", "10.0.0.2:7000")
