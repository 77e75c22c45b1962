"""Formats the output of `headrace pserver inspect`: one line for each bucket, or JSON."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from headrace.deploy.operations.examples_topic import ExamplesBounds
from headrace.deploy.operations.parked import parked_summary
from headrace.learner.loop.marks.parked_marks import parked_messages
from headrace.learner.loop.marks.topic_marks import offsets_in
from headrace.pserver.inspection.buckets import BucketSurvey
from headrace.pserver.inspection.model_survey import Survey
from headrace.runtime.counted_nouns import counted

UNKNOWN = "-"
_COLUMNS = ("bucket", "node", "rows", "bytes", "version", "log bytes", "keeper", "age", "lag")
_RIGHT = ("bucket", "rows", "bytes", "version", "log bytes", "age", "lag")


def is_complete(survey: Survey) -> bool:
    """Whether the model and every bucket could be read."""
    return survey.shape is not None and all(each.there for each in survey.buckets)


def survey_text(survey: Survey, topic: ExamplesBounds | None) -> Group:
    """Return a summary and a table of the buckets. `topic` is None if Kafka was not given."""
    table = Table(*_COLUMNS, "marks", box=None)
    for column in table.columns:
        column.justify = "right" if column.header in _RIGHT else "left"
        column.no_wrap = column.header not in ("keeper", "marks")
        column.overflow = "fold"
    for each in survey.buckets:
        place = (str(each.bucket), each.node)
        if not each.there:
            table.add_row(*place, *[UNKNOWN] * 7, Text(_absence(each), "bold red"))
            continue
        table.add_row(
            *place,
            f"{_rows(each):,}",
            UNKNOWN if (size := _bytes(each)) is None else f"{size:,}",
            f"{each.version:,}",
            f"{each.log_bytes:,}",
            _keeper(each),
            f"{age_s:,.1f} s" if (age_s := _age_s(each)) is not None else UNKNOWN,
            _lag(each, topic),
            _marks(each),
        )
    return Group(Text(_summary(survey, topic)), table)


def survey_json(survey: Survey, topic: ExamplesBounds | None) -> dict[str, Any]:
    """Return all figures as JSON."""
    shape = survey.shape
    return {
        "model": survey.model,
        "complete": is_complete(survey),
        "trouble": None if survey.trouble is None else str(survey.trouble),
        "shape": shape
        and {"buckets": shape.buckets, "width": shape.width, "fingerprint": shape.fingerprint},
        "rows": sum(_rows(each) for each in survey.buckets),
        "row_limit": survey.row_limit or None,
        "bytes": _total_bytes(survey.buckets),
        "log_bytes": sum(each.log_bytes for each in survey.buckets),
        "parked": [
            each.described() for each in parked_messages(e.marks for e in survey.buckets if e.there)
        ],
        "kafka_trouble": _kafka_trouble(topic),
        "nodes": [
            {
                "node": node.name,
                "primary": node.member.primary or None,
                "slots": node.member.slots,
                "trouble": node.trouble,
                "functions": node.functions,
                "used_memory_bytes": int(node.info.get("used_memory", 0)),
            }
            for node in survey.nodes
        ],
        "buckets": [
            {
                "bucket": each.bucket,
                "node": each.node,
                "trouble": None if each.there else _absence(each),
                "rows": _rows(each),
                "rows_in_log": each.rows_in_log,
                "bytes": _bytes(each),
                "version": each.version,
                "log_bytes": each.log_bytes,
                "log_entries": each.version - each.trimmed,
                "keeper": each.keeper or None,
                "lease_left_ms": each.lease_left_ms,
                "age_s": _age_s(each),
                "lag": None if topic is None or not each.there else topic.lag(each.marks),
                "marks": offsets_in(each.marks),
            }
            for each in survey.buckets
        ],
    }


def _summary(survey: Survey, topic: ExamplesBounds | None) -> str:
    """Return the totals of all buckets in one line."""
    shape, buckets = survey.shape, survey.buckets
    if shape is None:
        head = f"{survey.model}: {survey.trouble}; keys of {counted(len(buckets), 'bucket')}"
    else:
        head = f"{survey.model}: {counted(shape.buckets, 'bucket')}, {shape.width} floats a row"
        head += f", spec {shape.fingerprint}"
    parts = [f"{head}, {_rows_in_all(buckets)}"]
    if survey.row_limit:
        share = sum(map(_rows, buckets)) / survey.row_limit
        parts.append(f"{share:.0%} of the limit of {counted(survey.row_limit, 'row')}")
    if away := sum(not each.there for each in buckets):
        parts.append(f"{counted(away, 'bucket is', 'buckets are')} missing or unreachable")
    if (total := _total_bytes(buckets)) is not None:
        folded = sum(each.rows for each in buckets)
        rows_bytes = sum(each.rows_bytes or 0 for each in buckets)
        each_row = f", {rows_bytes / folded:.0f} a folded row" if folded else ""
        parts.append(f"{total:,} bytes including logs{each_row}")
    parts.append(_spread(buckets))
    if parked := parked_messages(each.marks for each in buckets if each.there):
        parts.append(f"{parked_summary(parked)} (headrace learner parked)")
    if (trouble := _kafka_trouble(topic)) is not None:
        parts.append(f"lag unknown: {trouble}")
    return "; ".join(parts)


def _rows_in_all(buckets: Sequence[BucketSurvey]) -> str:
    rows = sum(map(_rows, buckets))
    in_logs = [each.rows_in_log for each in buckets if each.there]
    if None in in_logs:
        return f"{counted(rows, 'row')} folded (rows that are only in the logs are not counted)"
    only = sum(count or 0 for count in in_logs)
    return counted(rows, "row") + (f" ({only:,} of them only in the logs)" if only else "")


def _spread(buckets: Sequence[BucketSurvey]) -> str:
    """Return how evenly the rows are spread over the nodes that answer."""
    rows: defaultdict[str, int] = defaultdict(int)
    for each in buckets:
        if each.trouble is None:
            rows[each.node] += _rows(each)
    mean = sum(rows.values()) / len(rows) if rows else 0
    if len(rows) < 2 or not mean:
        return f"on {counted(len(rows), 'node')}"
    more = max(rows.values()) / mean - 1
    return f"on {len(rows)} nodes, the fullest with {more:.0%} more rows than the mean"


def _rows(bucket: BucketSurvey) -> int:
    return bucket.rows + (bucket.rows_in_log or 0)


def _absence(bucket: BucketSurvey) -> str:
    if bucket.trouble is not None:
        return bucket.trouble
    if bucket.loading:
        return "partly restored: a restore is running or was interrupted"
    return "missing: its shard lost its data or never had any; run headrace pserver restore"


def _bytes(bucket: BucketSurvey) -> int | None:
    if bucket.rows_bytes is None or bucket.log_memory_bytes is None:
        return None
    return bucket.rows_bytes + bucket.log_memory_bytes


def _total_bytes(buckets: Sequence[BucketSurvey]) -> int | None:
    sizes = [_bytes(each) for each in buckets if each.there]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _age_s(bucket: BucketSurvey) -> float | None:
    """Return the time from the append of the newest event learned to the look at the bucket."""
    return max(0, bucket.read_ms - bucket.append_ms) / 1000 if bucket.append_ms else None


def _keeper(bucket: BucketSurvey) -> str:
    # a nonce of the lease follows the name
    name = bucket.keeper.rpartition(":")[0] or bucket.keeper
    if bucket.lease_left_ms is None or not name:
        return "none"
    if bucket.lease_left_ms <= 0:
        return f"none ({name} until {-bucket.lease_left_ms / 1000:,.0f} s ago)"
    return f"{name} ({bucket.lease_left_ms / 1000:.0f} s left)"


def _kafka_trouble(topic: ExamplesBounds | None) -> str | None:
    return "give --kafka / HEADRACE_KAFKA" if topic is None else topic.trouble


def _lag(bucket: BucketSurvey, topic: ExamplesBounds | None) -> str:
    lag = None if topic is None else topic.lag(bucket.marks)
    return "no Kafka" if lag is None else f"{lag:,}"


def _marks(bucket: BucketSurvey) -> str:
    # the topic id is long; its last four characters tell two topics apart
    return ", ".join(
        f"{source.rpartition('/')[0][-4:]}/{source.rpartition('/')[2]}: {mark:,}"
        for source, mark in sorted(offsets_in(bucket.marks).items())
    )
