"""Compares the scores that a server answered with those that the learner made.

Outcomes and learner scores come from Kafka (topics `examples.<model>` and `scores.<model>`), never
from counters of a process. Both accuracies are of the same impressions, so that their difference is
due to freshness alone.
"""

from typing import NamedTuple

from headrace.ingest.examples.batch import unpack as unpack_examples
from headrace.ingest.kafka.reading.bounded_reader import read_all
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import examples_topic, scores_topic
from headrace.learner.loop.scores import Scores
from headrace.learner.loop.scores import unpack as unpack_scores
from headrace.learner.spec.model_spec import ModelSpec
from headrace.learner.validation.outcomes import Outcomes, join_outcomes


class ServedComparison(NamedTuple):
    """The same impressions, scored by the server at the request and by the learner."""

    served: Outcomes
    learned: Outcomes
    """Each score was made in the order of events, after everything before it was learned."""


def served_beside_learned(
    kafka: KafkaSettings, spec: ModelSpec, served: Scores
) -> ServedComparison:
    """Join the served scores, and the learner's scores of the same impressions, with outcomes.

    Raises KafkaUnreachable.
    """
    examples = [
        unpack_examples(record.value, spec.fields)
        for record in read_all(kafka, examples_topic(spec.name))
    ]
    scores = (unpack_scores(record.value) for record in read_all(kafka, scores_topic(spec.name)))
    given = join_outcomes(examples, [served])
    return ServedComparison(given, join_outcomes(examples, scores).only(given.impression_ids))
