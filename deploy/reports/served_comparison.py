"""Compares the scores that a server answered with those that the learner made.

Both come from Kafka (topics `scores.<model>` and `examples.<model>`), never from a process's own
counters. The two accuracies are of the same impressions, so their difference is freshness alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.ingest.examples import unpack as unpack_examples
from headrace.ingest.kafka import examples_topic, read_all, scores_topic
from headrace.learner.loop import unpack as unpack_scores
from headrace.learner.validation import Outcomes, join_outcomes

if TYPE_CHECKING:
    from headrace.ingest.kafka import KafkaSettings
    from headrace.learner.loop import Scores
    from headrace.learner.spec import ModelSpec


class ServedComparison(NamedTuple):
    """The same impressions, scored by a server when they were asked for, and by the learner."""

    served: Outcomes
    learned: Outcomes
    """Each score made in the order of events, when everything before it was learned."""


def served_beside_learned(
    kafka: KafkaSettings, spec: ModelSpec, served: Scores
) -> ServedComparison:
    """Join what a server answered with outcomes, and the learner's scores of the same impressions.

    Raises KafkaUnreachable.
    """
    examples = [
        unpack_examples(record.value, spec.fields)
        for record in read_all(kafka, examples_topic(spec.name))
    ]
    scores = (unpack_scores(record.value) for record in read_all(kafka, scores_topic(spec.name)))
    given = join_outcomes(examples, [served])
    return ServedComparison(given, join_outcomes(examples, scores).only(given.impression_ids))
