"""Checks a model in a store against its spec and its topic. Pure functions."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from headrace.deploy.operations.check_result import CheckResult, Severity
from headrace.deploy.operations.examples_topic import ExamplesBounds
from headrace.ingest.kafka.topics import FOREVER_MS
from headrace.learner.loop.marks.topic_marks import buckets_behind, topic_of
from headrace.learner.spec.compatibility import check_compatible
from headrace.learner.spec.model_spec import ModelSpec
from headrace.pserver.errors import MissingModel, Unreachable, WrongModel
from headrace.pserver.inspection.model_survey import Survey
from headrace.pserver.rows.row_codec import row_bytes
from headrace.runtime.counted_nouns import counted

LARGE_LOG_BYTES = 16 << 20
"""Twice the size to which a keeper trims the log of a bucket."""
LARGEST_LOG_BYTES = 64 << 20
"""Size at which learners wait for the keepers."""
NEARLY_FULL = 0.9
"""Share of its limit on rows from which a model is reported. Keepers delete down to 0.94."""
UNTENDED_MS = 60_000
"""Six leases. Another keeper replaces a dead one within one lease."""

_OLDEST_SNAPSHOT_MS = 26 * 3_600_000
"""As in the alert HeadraceSnapshotOld."""


def check_model(survey: Survey, spec: ModelSpec) -> Iterator[CheckResult]:
    """Check that the model exists and has this spec."""
    if survey.shape is not None:
        try:
            check_compatible(spec, survey.shape)
        except WrongModel as error:
            expected = f"the model of this spec ({spec.fingerprint}, {spec.width} floats a row)"
            remedy = "use the spec of the model, or create a model under another name"
            yield CheckResult(Severity.BROKEN, "model", spec.name, expected, str(error), remedy)
        return
    assert survey.trouble is not None
    if isinstance(survey.trouble, MissingModel):
        remedy = "headrace pserver init; if the model existed before, headrace pserver restore"
        if survey.buckets:
            remedy = "run the interrupted command again: headrace pserver init, restore or drop"
    elif isinstance(survey.trouble, Unreachable):
        remedy = "restart that node; the findings below come from the keys of the other nodes"
    else:
        remedy = "see docs/guides/operating.md"
    yield CheckResult(
        Severity.BROKEN, "model", spec.name, "a complete model", str(survey.trouble), remedy
    )


def check_rows(survey: Survey) -> Iterator[CheckResult]:
    """Check that the model has room for more rows, if an operator limits them."""
    rows = sum(each.rows for each in survey.buckets)
    if not survey.row_limit or rows < NEARLY_FULL * survey.row_limit:
        return
    yield CheckResult(
        Severity.WARNING,
        "model",
        survey.model,
        f"less than {NEARLY_FULL:.0%} of the limit of {survey.row_limit:,} rows",
        f"{counted(rows, 'row')}: keepers delete the least recently seen ones beyond the limit",
        "raise it with `headrace pserver limit --rows`, or reduce rows: [expiry] and [admission] "
        "in the spec",
    )


def check_buckets(survey: Survey) -> Iterator[CheckResult]:
    """Check that every bucket exists."""
    for each in survey.buckets:
        if each.trouble is not None:
            remedy = "restart the node; the events of its buckets wait in Kafka"
            found = each.trouble
        elif each.loading:
            remedy = "wait for the running restore, or run headrace pserver restore again"
            found = f"partly restored, on {each.node}"
        elif each.missing:
            remedy = "headrace pserver restore; learners then catch up from Kafka"
            found = f"nothing: the shard {each.node} lost its data or never had any"
        else:
            continue
        where = f"bucket {each.bucket}"
        yield CheckResult(Severity.BROKEN, "buckets", where, "the bucket", found, remedy)


def check_keepers(survey: Survey) -> Iterator[CheckResult]:
    """Check that keepers fold and trim the logs."""
    for each in survey.buckets:
        where, left_ms = f"bucket {each.bucket}", each.lease_left_ms
        untended = left_ms is None or left_ms < -UNTENDED_MS
        if untended and each.version > each.trimmed:
            found = "no keeper so far" if left_ms is None else "no keeper for more than a minute"
            remedy = "keep at least one headrace pserver keep running"
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
                "run `headrace pserver keep`, or more of them if they are busy",
            )


def check_layout(survey: Survey) -> Iterator[CheckResult]:
    """Check that rows are stored compactly (as listpacks)."""
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
                f"{longest}: each row takes about 25 to 70 bytes more",
                f"CONFIG SET hash-max-listpack-value {max(1024, width_bytes)}; "
                "existing rows follow at the next restart",
            )
    for each in survey.buckets:
        most = int((settings.get(each.node) or {}).get("hash-max-listpack-entries", 0))
        if most and each.rows_of_fullest > most:
            yield CheckResult(
                Severity.WARNING,
                "layout",
                f"bucket {each.bucket}",
                f"{counted(most, 'row')} a sub-hash or less (hash-max-listpack-entries)",
                "more: each row takes about 25 to 70 bytes more",
                "CONFIG SET hash-max-listpack-entries 512; if that is not enough, restore a "
                "snapshot with a multiple of the buckets",
            )


def check_kafka(survey: Survey, topic: ExamplesBounds) -> Iterator[CheckResult]:
    """Check that Kafka still has the examples that the buckets have not learned."""
    if topic.trouble is not None:
        remedy = "--kafka / HEADRACE_KAFKA, --kafka-client; headrace ingest topics"
        yield CheckResult(
            Severity.WARNING,
            "kafka",
            topic.topic,
            "the offsets of the topic",
            topic.trouble,
            remedy,
        )
        return
    yield from _check_retention(topic)
    yield from _check_logs(topic)
    learned = {topic_of(name) for each in survey.buckets for name, to in each.marks.items() if to}
    now = {topic_of(name) for name in topic.bounds}
    if learned and not learned & now:
        yield CheckResult(
            Severity.BROKEN,
            "kafka",
            topic.topic,
            f"the topic that was learned so far, with identity {' or '.join(sorted(learned))}",
            f"{' '.join(now)}: it was deleted and created again, and learners refuse it",
            "if the new topic continues the old one, start the learner once with --accept-topic "
            f"{' '.join(now)}; if it repeats examples, run headrace pserver drop, then init",
        )
        return
    yield from _check_restored(survey, topic.topic, now)
    for each in survey.buckets:
        for source, (first, end) in topic.bounds.items() if each.there else ():
            mark, partition = each.marks.get(source, 0), source.rpartition("/")[2]
            if first <= mark <= end:
                continue
            lost = mark < first
            yield CheckResult(
                Severity.BROKEN,
                "kafka",
                f"bucket {each.bucket}",
                f"a mark within the offsets of {topic.topic}/{partition}: {first:,} to {end:,}",
                f"{mark:,}: "
                + (
                    f"Kafka deleted {counted(first - mark, 'offset')} before a learner read them"
                    if lost
                    else "the topic was truncated, or the store belongs to another Kafka"
                ),
                "restore a snapshot that matches the topic, or start a new model"
                + (
                    "; or skip these examples: start the learner once with --accept-gap, and raise "
                    "the topic's retention.ms"
                )
                * lost,
            )


def _check_restored(survey: Survey, topic: str, now: Iterable[str]) -> Iterator[CheckResult]:
    """Check that no bucket lacks examples of an earlier topic of this name."""
    marks = {each.bucket: each.marks for each in survey.buckets if each.there}
    for topic_id in now:
        for bucket, source, mark, greatest in buckets_behind(topic_id, marks):
            yield CheckResult(
                Severity.BROKEN,
                "kafka",
                f"bucket {bucket}",
                f"all of the topic before the present {topic}: {source} up to {greatest:,}",
                f"{mark:,}: the bucket was restored from a snapshot older than the present topic, "
                "and learners refuse it",
                "restore a snapshot that has learned from the present topic; or skip these "
                f"examples: start the learner once with --accept-topic {topic_id}",
            )


_AFTER_A_LOSS = {
    "learner": "restore a snapshot from before that, or begin a new model",
    "joiner": "begin a new model: this one has learned events that Kafka has lost",
    "scorer": "start the scorer once with --score-again: it scores the impressions again",
}


def _check_logs(topic: ExamplesBounds) -> Iterator[CheckResult]:
    """Check that Kafka still has what learner, joiner and scorer have read."""
    for each in topic.cut:
        yield CheckResult(
            Severity.BROKEN,
            "kafka",
            f"{each.source.topic}/{each.source.partition}",
            f"the log that the {each.reader} has read up to offset {each.position:,}",
            "a log that lost some of these records, and the process stops at its next start (an "
            "unclean election, or a power loss with one replica)",
            _AFTER_A_LOSS[each.reader],
        )
    for place, count in sorted(topic.missing.items()):
        yield CheckResult(
            Severity.BROKEN,
            "kafka",
            place,
            "the batch of examples that follows the one before it",
            f"{counted(count, 'example')} missing before it, and learners stop there",
            "to learn the others, start the learner once with --accept-gap",
        )


def _check_retention(topic: ExamplesBounds) -> Iterator[CheckResult]:
    """Check that Kafka keeps positions for as long as the events that they tell apart."""
    if topic.retention is None:
        return
    offsets_ms, by_topic = topic.retention
    kept_ms = dict(by_topic)
    examples_ms = kept_ms.pop(topic.topic, 0)
    for events, events_ms in kept_ms.items():
        if events_ms <= offsets_ms:
            continue
        lost = events_ms > examples_ms  # else the examples have the joiner's position
        yield CheckResult(
            Severity.WARNING if lost else Severity.NOTE,
            "kafka",
            events,
            f"committed offsets {'or examples ' * lost}that are kept as long as the events",
            f"offsets {_days(offsets_ms)} after the last member left, events {_days(events_ms)}, "
            f"examples {_days(examples_ms)}: after a longer stop, "
            + (
                "the joiner would join old events twice"
                if lost
                else "a scorer must be started with --score-again"
            ),
            "offsets.retention.minutes of the brokers"
            + (f", or retention.ms of {topic.topic}" * lost),
        )


class NewestSnapshot(NamedTuple):
    """The newest complete snapshot of a model in a folder."""

    place: str
    begun_ms: int
    """Unix time; 0 without one."""


def check_snapshots(survey: Survey, newest: NewestSnapshot) -> Iterator[CheckResult]:
    """Check that a snapshot is there, and not older than the alert on its age allows."""
    age_ms = survey.at_ms - newest.begun_ms
    if newest.begun_ms and age_ms <= _OLDEST_SNAPSHOT_MS:
        return
    yield CheckResult(
        Severity.WARNING,
        "snapshots",
        newest.place,
        "a complete snapshot of the last 26 hours",
        f"one from {age_ms / 3_600_000:,.0f} hours ago" if newest.begun_ms else "none",
        "run headrace pserver snapshot every day, for example from cron",
    )


def _days(time_ms: int) -> str:
    return "for ever" if time_ms >= FOREVER_MS else f"for {time_ms / 86_400_000:.3g} days"
