"""Writes what a learner publishes to Kafka: scores of impressions, and letters on quarantine."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import orjson

from headrace.ingest.dead_letters import pack as pack_letter
from headrace.ingest.kafka import Record, Source
from headrace.learner.loop.batch_guard import quarantine_letter
from headrace.learner.loop.scores import Scores
from headrace.learner.loop.scores import pack as pack_scores

if TYPE_CHECKING:
    import numpy.typing as npt

    from headrace.ingest.kafka import Writer
    from headrace.learner.loop.example_queue import ExampleBatch
    from headrace.learner.models import Quarantined

log = logging.getLogger(__name__)


class LearnerOutputs:
    """Scores go to the topic of scores, partition by partition; letters to the dead letters."""

    def __init__(self, writer: Writer, score_topic: str, dead_letter_topic: str) -> None:
        self._writer = writer
        self._score_topic, self._dead_letter_topic = score_topic, dead_letter_topic

    def send_scores(
        self, batch: ExampleBatch, scores: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64]:
        """Send the scores of a batch that are not NaN, and return these.

        scores: (n,), NaN where an example has none.
        """
        examples, scored = batch.examples, np.flatnonzero(~np.isnan(scores))
        if scored.shape[0]:
            message = Scores(
                examples.impression_ids.take(scored),
                examples.request_ids.take(scored),
                examples.event_ms[scored],
                scores[scored],
            )
            target = Source(self._score_topic, batch.source.partition)
            self._writer.send(target, pack_scores(message))
        return scores[scored]

    def send_letter(self, batch: ExampleBatch, held: Quarantined) -> None:
        """Send a dead letter about quarantined examples of a batch, and log why."""
        examples, source = batch.examples, batch.source
        place = source.topic, source.partition, batch.offset
        log.error("%s/%d at offset %d held back: %s", *place, held.reason)
        impressions = examples.impression_ids.slice(held.begin, held.end - held.begin)
        record = Record(
            source,
            batch.offset,
            int(examples.append_ms[held.begin : held.end].max()),
            orjson.dumps(impressions.to_pylist()),
        )
        letter = pack_letter(record, quarantine_letter(held.end - held.begin, held.reason))
        self._writer.send(Source(self._dead_letter_topic, 0), letter)

    def flush(self) -> None:
        """Wait until Kafka has persisted everything sent."""
        self._writer.flush()
