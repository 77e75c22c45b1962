"""What users were given beside what the learner knew: two accuracies of the same impressions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from deploy.outcomes import join_outcomes
from ingest.examples import unpack as unpack_examples
from ingest.kafka import read_all
from ingest.topics import examples_topic, scores_topic
from learner.scores import unpack as unpack_scores

if TYPE_CHECKING:
    from deploy.outcomes import Outcomes
    from ingest.settings import KafkaSettings
    from learner.scores import Scores
    from learner.spec import ModelSpec


class Beside(NamedTuple):
    """The same impressions, scored by a server when they were asked for, and by the learner."""

    served: Outcomes
    learned: Outcomes
    """Each score made in the order of events, when everything before it was learned."""


def served_beside_learned(kafka: KafkaSettings, spec: ModelSpec, served: Scores) -> Beside:
    """Join what a server answered with outcomes, and the learner's scores of the same impressions.

    Raises KafkaUnreachable.
    """
    examples = [
        unpack_examples(record.value, spec.fields)
        for record in read_all(kafka, examples_topic(spec.name))
    ]
    scores = (unpack_scores(record.value) for record in read_all(kafka, scores_topic(spec.name)))
    given = join_outcomes(examples, [served])
    return Beside(given, join_outcomes(examples, scores).only(given.impression_ids))
