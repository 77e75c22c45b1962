"""The outputs of a learner: scores, letters on quarantine, and its totals.

A learner of a topic publishes them to Kafka (`KafkaOutputs`). A rebuild or a fit of files publishes
nothing (`LearnerOutputs`).
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import orjson

from headrace.ingest.dead_letters.letter import pack as pack_letter
from headrace.ingest.kafka.protocols import Record, Source, Writer
from headrace.learner.loop.guard.batch_guard import quarantine_letter
from headrace.learner.loop.marks.parked_marks import ParkedMessage
from headrace.learner.loop.merging import ExampleBatch, QuarantinedExamples
from headrace.learner.loop.scores import pack as pack_scores
from headrace.learner.loop.scores import scores_of

log = logging.getLogger(__name__)


@dataclass(slots=True)
class LearnerTotals:
    """Running totals of one learner, for its metrics."""

    examples: int = 0
    clicks: int = 0
    log_fill: float = 0.0
    """The longest log of a bucket, as a share of the length at which learning waits."""
    throttled: bool = False
    unanswered_examples: int = 0
    """Learned since a bucket stopped answering."""
    waiting_for_buckets: bool = False
    quarantined_batches: int = 0
    """Quarantined, whole or in part."""
    quarantined_examples: int = 0
    parked: tuple[ParkedMessage, ...] = ()
    """The parked messages of the partitions of this learner; never changed, only replaced."""
    parked_lost: int = 0
    """The number of them that Kafka has deleted."""
    waiting_for_parked: bool = False
    """Whether so much is parked that nothing new is learned."""

    @property
    def learns_nothing(self) -> bool:
        """Whether new examples wait in Kafka."""
        return self.waiting_for_buckets or self.waiting_for_parked


class LearnerOutputs:
    """The outputs of a learner that publishes nothing. It logs and counts what is quarantined."""

    def send_scores(self, batch: ExampleBatch, scores: npt.NDArray[np.float64]) -> None:
        """Take the scores of a batch, (n,); NaN where an example has none."""

    def report(self, figures: LearnerTotals, quarantined: Sequence[QuarantinedExamples]) -> None:
        """Count quarantined examples and their messages, and send dead letters about them."""
        figures.quarantined_batches += len(
            {(each.batch.name, each.batch.offset) for each in quarantined}
        )
        for each in quarantined:
            figures.quarantined_examples += each.places.shape[0]
            batch, places = each.batch, each.places
            append_ms = int(batch.examples.append_ms[places].max())
            ids = orjson.dumps(batch.examples.impression_ids.take(places).to_pylist())
            record = Record(batch.source, batch.offset, append_ms, ids)
            self.send_letter(record, places.shape[0], each.reason)

    def report_gone(
        self, figures: LearnerTotals, source: Source, parked: ParkedMessage, reason: str
    ) -> None:
        """Count a parked message that Kafka no longer has, and send a dead letter about it."""
        figures.quarantined_batches += 1
        figures.quarantined_examples += parked.examples
        self.send_letter(Record(source, parked.offset, 0, b"[]"), parked.examples, reason)

    def send_letter(self, record: Record, examples: int, reason: str) -> None:
        """Log why examples of a message are quarantined. record: its place, and impression ids."""
        source = record.source
        place = source.topic, source.partition, record.offset
        log.error("%s/%d at offset %d: %s", *place, quarantine_letter(examples, reason))

    def flush(self) -> None:
        """Wait until everything sent is persisted."""


class KafkaOutputs(LearnerOutputs):
    """Scores go to the topic of scores, partition by partition; letters to the dead letters."""

    def __init__(
        self, writer: Writer, score_topic: str, dead_letter_topic: str = "dead-letters"
    ) -> None:
        self._writer = writer
        self._score_topic, self._dead_letter_topic = score_topic, dead_letter_topic

    def send_scores(self, batch: ExampleBatch, scores: npt.NDArray[np.float64]) -> None:
        """Send the scores of a batch that are not NaN."""
        message = scores_of(batch.examples, scores)
        if len(message):
            target = Source(self._score_topic, batch.source.partition)
            self._writer.send(target, pack_scores(message))

    def send_letter(self, record: Record, examples: int, reason: str) -> None:
        """Send a dead letter about quarantined examples of a message, and log why."""
        super().send_letter(record, examples, reason)
        letter = pack_letter(record, quarantine_letter(examples, reason))
        self._writer.send(Source(self._dead_letter_topic, 0), letter)

    def flush(self) -> None:
        """Wait until Kafka has persisted everything sent."""
        self._writer.flush()
