"""Prometheus metrics of a learner: its totals, and the age of the events it learned.

The loop keeps plain totals (`LearnerTotals`, `PushTotals`). This collector reads them when
Prometheus asks, so the hot path has no metrics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from headrace.ingest.kafka.protocols import Source
from headrace.learner.inputs.admission import AdmissionCounts
from headrace.learner.loop.row_prefetcher import AllRows
from headrace.runtime.process_metrics import ModelCollector

if TYPE_CHECKING:
    from headrace.learner.loop.learner import Learner


def unlearned_ratio(
    marks: Mapping[Source, int], bounds: Mapping[Source, tuple[int, int]]
) -> float | None:
    """Return the share of Kafka's examples that some bucket has not learned, 0 to 1.

    The worst partition decides; None if Kafka has no example. At 1, retention deletes examples that
    are not learned yet. marks: for each source, the first offset that some bucket lacks. held: the
    first offset and the end of each source that Kafka answered for.
    """
    ratios = []
    for source, mark in marks.items():
        first, end = bounds.get(source, (0, 0))
        if end > first:
            ratios.append((end - max(first, mark)) / (end - first))
    return max(ratios, default=None)


class LearnerCollector(ModelCollector):
    """The metrics of one learner, labelled with its model."""

    def __init__(
        self,
        model: str,
        learner: Learner,
        now_ms: Callable[[], int],
        admissions: Callable[[], AdmissionCounts],
        bounds: Callable[[], Mapping[Source, tuple[int, int]]] = dict,
    ) -> None:
        """held: first offset and end of each source, as Kafka last answered."""
        super().__init__("learner", model)
        self._bounds = bounds
        self._learner, self._now_ms = learner, now_ms
        self._admissions = admissions

    def collect(self) -> Iterator[Metric]:
        """Yield the present metrics."""
        figures, tally = self._learner.figures, self._learner.tally
        progress = self._learner.progress
        yield self._counter(
            "examples", "Examples learned, re-read ones included.", figures.examples
        )
        yield self._counter("clicks", "Examples learned with label 1.", figures.clicks)
        yield self._counter("scored", "Impressions scored before learning.", figures.scored)
        yield self._counter("held_batches", "Batches quarantined.", figures.quarantined_batches)
        yield self._counter(
            "held_examples", "Examples in quarantined batches.", figures.quarantined_examples
        )
        yield self._counter(
            "gap_offsets",
            "Offsets skipped: deleted (--accept-gap) or damaged (--skip-damaged) messages.",
            self._learner.intake.gap_offsets + self._learner.messages.skipped,
        )
        yield self._counter(
            "score_sum", "Sum of the scores made before learning.", figures.score_sum
        )
        pushes = CounterMetricFamily(
            "headrace_learner_pushes",
            "Pushes by outcome: applied, refused (discarded and read again), unanswered (retried).",
            labels=["model", "outcome"],
        )
        pushes.add_metric([self._model, "applied"], tally.applied)
        pushes.add_metric([self._model, "refused"], tally.refused)
        pushes.add_metric([self._model, "unanswered"], tally.unanswered)
        yield pushes
        yield self._counter("pushed_rows", "Rows carried by pushes.", tally.rows)
        yield self._counter("pushed_bytes", "Bytes carried by pushes.", tally.size_bytes)
        admitted, refused = self._admissions()
        yield self._counter("admitted_rows", "Rows that admission has created.", admitted)
        yield self._counter(
            "refused_ids", "Times that an id without a row counted in its rare row.", refused
        )
        yield from self._backpressure()
        yield from self._waiting()
        yield self._gauge("rows", "Rows in this learner's memory.", len(self._learner.view))
        yield from self._bounded()
        yield from self._retention()
        if progress.append_ms:
            yield self._gauge(
                "learned_append_timestamp_seconds",
                "Append time in Kafka of the newest event learned, Unix time.",
                progress.append_ms / 1000,
            )
            yield self._gauge(
                "age_seconds",
                "Now minus the append time of the newest event learned.",
                (self._now_ms() - progress.append_ms) / 1000,
            )

    def _backpressure(self) -> Iterator[Metric]:
        """Yield how far the store is behind this learner."""
        figures = self._learner.figures
        yield self._gauge(
            "throttled", "1 while learning waits for keepers to fold.", float(figures.throttled)
        )
        yield self._gauge(
            "log_fill_ratio",
            "The longest log of a bucket after this learner's last push to it, as a share of the "
            "length at which learning waits for keepers.",
            figures.log_fill,
        )
        yield self._gauge(
            "unanswered_examples",
            "Examples learned since a bucket stopped answering; 0 while all answer.",
            figures.unanswered_examples,
        )

    def _waiting(self) -> Iterator[Metric]:
        """Yield what learning waits for, and what is parked in each partition, by cause."""
        figures = self._learner.figures
        yield self._gauge(
            "waiting_for_buckets",
            "1 while learning waits for buckets that do not answer.",
            float(figures.waiting_for_buckets),
        )
        nothing = {(source.partition, "none"): 0 for source in self._learner.intake.committed}
        messages, examples = Counter(nothing), Counter(nothing)
        for each in figures.parked:
            place = each.partition, str(each.cause)
            messages[place] += 1
            examples[place] += each.examples
        for name, help_text, sums in (
            ("parked_messages", "Messages of examples that the batch guard parked.", messages),
            ("parked_examples", "Examples in parked messages, which are not learned.", examples),
        ):
            family = GaugeMetricFamily(
                f"headrace_learner_{name}", help_text, labels=["model", "partition", "cause"]
            )
            for (partition, cause), value in sorted(sums.items()):
                family.add_metric([self._model, str(partition), cause], value)
            yield family
        yield self._gauge("parked_lost", "Parked messages that Kafka deleted.", figures.parked_lost)
        yield self._gauge(
            "waiting_for_parked",
            "1 while learning waits because no more messages may be parked.",
            float(figures.waiting_for_parked),
        )

    def _retention(self) -> Iterator[Metric]:
        """Yield how near retention is to the marks; nothing while Kafka does not answer."""
        ratio = unlearned_ratio(self._learner.intake.committed, self._bounds())
        if ratio is not None:
            yield self._gauge(
                "unlearned_ratio",
                "Share of Kafka's examples that some bucket has not learned, in the worst "
                "partition. Near 1, retention deletes examples that are not learned.",
                ratio,
            )

    def _bounded(self) -> Iterator[Metric]:
        """Yield the metrics of a learner that holds only some rows."""
        rows = self._learner.rows
        if isinstance(rows, AllRows):
            return
        usage = rows.usage
        lookups = CounterMetricFamily(
            "headrace_learner_row_lookups",
            "With --most-rows: rows needed, once per batch, by outcome: hit or pulled.",
            labels=["model", "outcome"],
        )
        lookups.add_metric([self._model, "hit"], usage.hits)
        lookups.add_metric([self._model, "pulled"], usage.pulled)
        yield lookups
        yield self._counter(
            "bound_passed",
            "With --most-rows: times that a batch and open pushes needed more than the limit.",
            usage.passed,
        )
        yield self._gauge(
            "tail_bytes",
            "With --most-rows: memory of log entries that are not trimmed.",
            rows.tail_bytes,
        )
