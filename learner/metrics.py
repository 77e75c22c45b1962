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
    are not learned yet. marks: for each source, the first offset that some bucket lacks. bounds:
    the first offset and the end of each source that Kafka answered for.
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
        """bounds: first offset and end of each source, as Kafka last answered."""
        super().__init__("learner", model)
        self._bounds = bounds
        self._learner, self._now_ms = learner, now_ms
        self._admissions = admissions

    def collect(self) -> Iterator[Metric]:
        """Yield the present metrics."""
        learner, figures, tally = self._learner, self._learner.figures, self._learner.tally
        admitted, refused = self._admissions()
        gaps = learner.intake.gap_offsets + learner.messages.skipped
        for counter in (
            ("examples", "Examples learned, re-read ones included.", figures.examples),
            ("clicks", "Examples learned with label 1.", figures.clicks),
            ("held_batches", "Batches quarantined.", figures.quarantined_batches),
            ("held_examples", "Examples in quarantined batches.", figures.quarantined_examples),
            ("gap_offsets", "Offsets skipped with --accept-gap or --skip-damaged.", gaps),
            ("pushed_rows", "Rows in pushes.", tally.rows),
            ("admitted_rows", "Rows that admission has created.", admitted),
            ("refused_ids", "Times that an id without a row counted in its rare row.", refused),
        ):
            yield self._counter(*counter)
        yield self._by_outcome(
            "pushes",
            "Pushes by outcome: applied, refused (discarded and read again), unanswered (retried).",
            applied=tally.applied,
            refused=tally.refused,
            unanswered=tally.unanswered,
        )
        length = "Longest log of a bucket, as a share of the length at which learning waits."
        no_answer = "1 while learning waits for buckets that do not answer."
        no_room = "1 while learning waits because no more messages may be parked."
        for gauge in (
            ("throttled", "1 while learning waits for keepers to fold.", figures.throttled),
            ("log_fill_ratio", length, figures.log_fill),
            ("waiting_for_buckets", no_answer, figures.waiting_for_buckets),
            ("waiting_for_parked", no_room, figures.waiting_for_parked),
            ("parked_lost", "Parked messages that Kafka deleted.", figures.parked_lost),
            ("rows", "Rows in this learner's memory.", len(learner.view)),
        ):
            yield self._gauge(*gauge)
        yield self._parked()
        yield from self._bounded()
        # nothing while Kafka does not answer
        ratio = unlearned_ratio(learner.intake.committed, self._bounds())
        if ratio is not None:
            yield self._gauge(
                "unlearned_ratio",
                "Share of Kafka's examples that some bucket has not learned, in the worst "
                "partition. Near 1, retention deletes examples that are not learned.",
                ratio,
            )
        if learner.progress.append_ms:
            yield self._gauge(
                "age_seconds",
                "Now minus the append time of the newest event learned.",
                (self._now_ms() - learner.progress.append_ms) / 1000,
            )

    def _by_outcome(self, name: str, text: str, **values: int) -> Metric:
        family = CounterMetricFamily(f"headrace_learner_{name}", text, labels=["model", "outcome"])
        for outcome, value in values.items():
            family.add_metric([self._model, outcome], value)
        return family

    def _parked(self) -> Metric:
        """Return what is parked in each partition, by cause."""
        sources = self._learner.intake.committed
        examples = Counter({(source.partition, "none"): 0 for source in sources})
        for each in self._learner.figures.parked:
            examples[each.partition, str(each.cause)] += each.examples
        family = GaugeMetricFamily(
            "headrace_learner_parked_examples",
            "Examples in messages that the batch guard parked, which are not learned.",
            labels=["model", "partition", "cause"],
        )
        for (partition, cause), value in sorted(examples.items()):
            family.add_metric([self._model, str(partition), cause], value)
        return family

    def _bounded(self) -> Iterator[Metric]:
        """Yield the metrics of a learner that holds only some rows."""
        rows = self._learner.rows
        if isinstance(rows, AllRows):
            return
        yield self._by_outcome(
            "row_lookups",
            "With --most-rows: rows needed, once per batch, by outcome: hit or pulled.",
            hit=rows.usage.hits,
            pulled=rows.usage.pulled,
        )
        yield self._counter(
            "bound_passed",
            "With --most-rows: times that a batch and open pushes needed more than the limit.",
            rows.usage.passed,
        )
        yield self._gauge(
            "tail_bytes",
            "With --most-rows: memory of log entries that are not trimmed.",
            rows.tail_bytes,
        )
