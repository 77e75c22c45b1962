"""What is wrong with a model in a store. Pure: from survey, spec and topic to findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.deploy.operations.check_result import CheckResult, Severity
from headrace.learner.spec import check_compatible
from headrace.pserver import MissingModel, Unreachable, WrongModel
from headrace.pserver.rows import row_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.deploy.operations.examples_topic import HeldTopic
    from headrace.learner.spec import ModelSpec
    from headrace.pserver.inspection import Survey

LARGE_LOG_BYTES = 16 << 20
"""Twice what a keeper leaves in the log of a bucket."""
LARGEST_LOG_BYTES = 64 << 20
"""At which learners wait for the keepers."""
UNTENDED_MS = 60_000
"""Six leases: a keeper that died is replaced in one, if there is another."""


def check_model(survey: Survey, spec: ModelSpec) -> Iterator[CheckResult]:
    """The model is there, and the one that the spec declares."""
    if survey.shape is not None:
        try:
            check_compatible(spec, survey.shape)
        except WrongModel as error:
            expected = f"the model of this spec ({spec.fingerprint}, {spec.width} floats a row)"
            remedy = "use the spec that the model was made from, or make a model of another name"
            yield CheckResult(Severity.BROKEN, "model", spec.name, expected, str(error), remedy)
        return
    assert survey.trouble is not None
    if isinstance(survey.trouble, MissingModel):
        remedy = "headrace pserver init; if it was there before, headrace pserver restore"
        if survey.buckets:
            remedy = "what was interrupted, again: headrace pserver init, restore or drop"
    elif isinstance(survey.trouble, Unreachable):
        remedy = "bring that node back; what follows was found from the keys on the others"
    else:
        remedy = "see docs/guides/operating.md"
    yield CheckResult(
        Severity.BROKEN, "model", spec.name, "a model that is whole", str(survey.trouble), remedy
    )


def check_buckets(survey: Survey) -> Iterator[CheckResult]:
    """Every bucket is there."""
    for each in survey.buckets:
        if each.trouble is not None:
            remedy = "bring the node back; its buckets' events wait in Kafka"
            found = each.trouble
        elif each.loading:
            remedy = "wait for the restore that is under way; else headrace pserver restore, again"
            found = f"half filled by a restore, on {each.node}"
        elif each.missing:
            remedy = "headrace pserver restore, which fills what is missing; Kafka has the rest"
            found = f"nothing: the shard {each.node} came back empty, or never had it"
        else:
            continue
        where = f"bucket {each.bucket}"
        yield CheckResult(Severity.BROKEN, "buckets", where, "the bucket", found, remedy)


def check_keepers(survey: Survey) -> Iterator[CheckResult]:
    """Logs are folded and trimmed."""
    for each in survey.buckets:
        where, left_ms = f"bucket {each.bucket}", each.lease_left_ms
        untended = left_ms is None or left_ms < -UNTENDED_MS
        if untended and each.version > each.trimmed:
            found = "never had one" if left_ms is None else "had none for more than a minute"
            remedy = "headrace pserver keep, once or more, always running"
            yield CheckResult(
                Severity.WARNING, "keepers", where, "a keeper that folds its log", found, remedy
            )
        if each.log_bytes > LARGE_LOG_BYTES:
            waiting = each.log_bytes > LARGEST_LOG_BYTES
            yield CheckResult(
                Severity.BROKEN if waiting else Severity.WARNING,
                "keepers",
                where,
                f"a log of {LARGE_LOG_BYTES >> 20} MB or less",
                f"{each.log_bytes / (1 << 20):,.0f} MB"
                + (": learners wait for it to shrink" * waiting),
                "headrace pserver keep; more of them, if those there are are busy",
            )


def check_layout(survey: Survey) -> Iterator[CheckResult]:
    """Rows lie flat in the servers' memory."""
    settings = {node.name: node.settings for node in survey.nodes if node.settings is not None}
    width_bytes = row_bytes(survey.shape.width) if survey.shape else 0
    for name, found in settings.items():
        longest = int(found.get("hash-max-listpack-value", width_bytes))
        if longest < width_bytes:
            yield CheckResult(
                Severity.WARNING,
                "layout",
                name,
                f"hash-max-listpack-value {width_bytes} or more, for rows of {width_bytes} bytes",
                f"{longest}: each row costs some 25 to 70 bytes more",
                f"CONFIG SET hash-max-listpack-value {max(1024, width_bytes)}; "
                "rows that are there follow at the next restart",
            )
    for each in survey.buckets:
        most = int((settings.get(each.node) or {}).get("hash-max-listpack-entries", 0))
        if most and each.rows_of_fullest > most:
            yield CheckResult(
                Severity.WARNING,
                "layout",
                f"bucket {each.bucket}",
                f"{most} rows a sub-hash or less (hash-max-listpack-entries)",
                "more: each row costs some 25 to 70 bytes more",
                "CONFIG SET hash-max-listpack-entries 512; if that is too few, restore a snapshot "
                "into a multiple of the buckets",
            )


def check_kafka(survey: Survey, topic: HeldTopic) -> Iterator[CheckResult]:
    """Kafka holds what the buckets have yet to learn."""
    if topic.trouble is not None:
        remedy = "--kafka / HEADRACE_KAFKA, --kafka-client; headrace ingest topics"
        yield CheckResult(
            Severity.WARNING, "kafka", topic.topic, "what it holds", topic.trouble, remedy
        )
        return
    learned = {_identity(name) for each in survey.buckets for name, to in each.marks.items() if to}
    now = {_identity(name) for name in topic.held}
    if learned and not learned & now:
        yield CheckResult(
            Severity.BROKEN,
            "kafka",
            topic.topic,
            f"the topic learned from so far, with identity {' or '.join(sorted(learned))}",
            f"{' '.join(now)}: it was deleted and made again, and learners refuse it",
            f"if it goes on where the old one ended: headrace learner run --accept-topic "
            f"{' '.join(now)}, once; if it begins anew: headrace pserver drop, then init",
        )
        return
    for each in survey.buckets:
        for source, (first, end) in topic.held.items() if each.there else ():
            mark, partition = each.marks.get(source, 0), source.rpartition("/")[2]
            if first <= mark <= end:
                continue
            lost = mark < first
            yield CheckResult(
                Severity.BROKEN,
                "kafka",
                f"bucket {each.bucket}",
                f"a mark within what {topic.topic}/{partition} holds: {first:,} to {end:,}",
                f"{mark:,}: "
                + (
                    f"{first - mark:,} offsets were deleted before they were learned"
                    if lost
                    else "the topic was cut, or the store belongs to another Kafka"
                ),
                "restore a snapshot that fits the topic, or begin a new model"
                + ("; and raise the topic's retention.ms" * lost),
            )


def _identity(source: str) -> str:
    return source.rpartition("/")[0]
