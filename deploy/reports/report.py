"""Makes the report of a run: one JSON object whose figures are all recounted from the source.

No figure is a running total of a process, because processes are killed and restarted. The counts of
events come from the state that the joiner committed with its examples. Accuracy is computed from
the topics of scores and examples. Shows and clicks are read from the rows of the parameter server.
A run with kills therefore has the same figures as one without, or the report shows the difference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from headrace.deploy.reports.event_log import impression_ids_of
from headrace.deploy.reports.refusals import Refusals
from headrace.ingest.examples.batch import unpack as unpack_examples
from headrace.ingest.features.fields import FieldSet
from headrace.ingest.joiner.committed_state import JoinerState
from headrace.ingest.kafka.reading.bounded_reader import read_all
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import examples_topic, scores_topic
from headrace.ingest.logs.layout import LogLayout
from headrace.learner.loop.scores import unpack as unpack_scores
from headrace.learner.spec.model_spec import ModelSpec
from headrace.learner.validation.breakdown import (
    ImpressionGroup,
    by_decile,
    by_slice,
    by_window,
    calibration_error,
)
from headrace.learner.validation.outcomes import Outcomes, join_outcomes
from headrace.learner.validation.progressive import ProgressiveValidation
from headrace.pserver.rows.table import RowTable

WINDOWS = 10
"""Windows of event time in the report. Each starts in the middle of the one before."""
FIELD_BITS = np.uint64(1023)
"""The low ten bits of an id are the number of its field."""


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Sums over the rows of the parameter server."""

    rows: int
    shows_by_field: dict[str, int]
    clicks_by_field: dict[str, int]


def count_rows(table: RowTable, fields: FieldSet) -> RowCounts:
    """Sum the counters of the rows of each single-valued field. `table` must be complete."""
    size = len(table)
    numbers = (table.ids & FIELD_BITS).astype(np.int64)
    sums = []
    for counts in (table.columns.shows[:size], table.columns.clicks[:size]):
        # float64 holds every sum below 2^53 exactly
        by_number = np.bincount(numbers, weights=counts, minlength=int(FIELD_BITS) + 1)
        sums.append({field.name: int(by_number[field.number]) for field in fields.singles})
    return RowCounts(size, sums[0], sums[1])


def read_outcomes(kafka: KafkaSettings, spec: ModelSpec) -> Outcomes:
    """Read all examples and scores of a model from Kafka. Raises KafkaUnreachable."""
    examples = read_all(kafka, examples_topic(spec.name))
    scores = read_all(kafka, scores_topic(spec.name))
    return join_outcomes(
        (unpack_examples(record.value, spec.fields) for record in examples),
        (unpack_scores(record.value) for record in scores),
    )


def make_report(
    *,
    state: JoinerState,
    refusals: Refusals,
    outcomes: Outcomes,
    data: Sequence[Path],
    layout: LogLayout | None = None,
    rows: RowCounts,
    freshness_ms: Mapping[str, float | None],
    seconds: float,
) -> dict[str, Any]:
    """Return the report as one JSON object.

    freshness_ms: percentiles of the time from the append of a click to Kafka until the server's
    replica has learned from it; None if it measured no click.
    """
    by_data = []
    for directory in data:
        part = outcomes.named(impression_ids_of(directory, layout))
        by_data.append({"data": str(directory)} | _figures(part.figures()))
    return {
        "impressions": state.impressions,
        "clicks": state.clicks,
        "learned_clicks": state.learned_clicks,
        "late_clicks": state.late_clicks,
        "unmatched_clicks": state.unmatched_clicks,
        "duplicates": state.duplicates,
        "duplicate_clicks": state.duplicate_clicks,
        "examples": state.examples,
        "dead_letters": state.dead_letters,
        "dropped_negatives": state.dropped_negatives,
        "parked_examples": sum(each.examples for each in refusals.parked),
        "parked": [each.described() for each in refusals.parked],
        **refusal_figures(refusals),
        "seconds": round(seconds, 3),
        "progressive": _figures(outcomes.figures()),
        "by_data": by_data,
        **_breakdown(outcomes),
        "freshness_ms": freshness_ms,
        "rows": rows.rows,
        "shows_by_field": rows.shows_by_field,
        "clicks_by_field": rows.clicks_by_field,
    }


def refusal_figures(refusals: Refusals) -> dict[str, Any]:
    """Return the refused events and the quarantined batches of a report."""
    return {
        "held_batches": refusals.quarantined_batches,
        "held_examples": refusals.quarantined_examples,
        "refused_by_reason": [asdict(each) for each in refusals.events],
        "held_by_reason": [asdict(each) for each in refusals.quarantined],
    }


def _breakdown(outcomes: Outcomes) -> dict[str, Any]:
    """Return the figures by decile of the scores, by slice, and by sliding window."""
    times, bands = outcomes.event_ms, by_decile(outcomes)
    span_ms = int(times.max() - times.min()) + 1 if len(outcomes) else 1
    length_ms = -(-span_ms // WINDOWS)
    return {
        "calibration_error": _rounded(calibration_error(bands)),
        "by_decile": [
            {name: _rounded(value) for name, value in asdict(band).items()} for band in bands
        ],
        "by_slice": {
            field: [_part("value", part.name, part) for part in by_slice(outcomes, values)]
            for field, values in sorted(outcomes.slices.items())
        },
        "by_window": [
            _part("begin_ms", begin_ms, part)
            for begin_ms, part in by_window(outcomes, length_ms, -(-length_ms // 2))
        ],
        "window_ms": length_ms,
    }


def _part(key: str, value: str | int, part: ImpressionGroup) -> dict[str, Any]:
    return {key: value, "impressions": part.impressions} | _figures(part.figures)


def _figures(accuracy: ProgressiveValidation) -> dict[str, float | None]:
    return {name: _rounded(value) for name, value in asdict(accuracy).items()}


def _rounded(value: float) -> float | None:
    # an undefined figure (an AUC with labels of one kind) is null: JSON has no NaN
    return round(value, 6) if np.isfinite(value) else None


def write_report(path: Path, report: Mapping[str, Any]) -> None:
    """Write the report atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".part")
    unfinished.write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2) + b"\n")
    unfinished.replace(path)
