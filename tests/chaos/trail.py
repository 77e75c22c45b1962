"""Finds where examples were lost: in the joiner or Kafka, or in the learner.

Each transaction's last batch of examples carries the joiner's counters (`ingest.joiner`). The topic
must hold as many examples as they say, at each of these batches. And a learner sends a score for
each shown impression before it marks its examples as learned. So an example without a score that
the topic holds was skipped by a learner.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
import numpy as np

from headrace.ingest.examples.batch import Kind, notes_of, unpack
from headrace.ingest.features.fields import FieldSet
from headrace.ingest.joiner.committed_state import SavedCheckpoint
from headrace.ingest.kafka.protocols import Record
from headrace.ingest.kafka.reading.bounded_reader import read_all
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import examples_topic, scores_topic
from headrace.learner.loop.scores import unpack as unpack_scores
from headrace.learner.spec.model_spec import ModelSpec


@dataclass(slots=True)
class _Partition:
    examples: int = 0
    """In the topic so far."""
    missing: int = 0
    """Examples that the joiner counted, and the topic does not hold, so far."""


@dataclass(slots=True)
class Trail:
    """The examples of a topic, followed from the joiner to the learner."""

    lost: list[str] = field(default_factory=list)
    """Places where the topic holds other numbers of examples than the joiner counted."""
    unscored: list[str] = field(default_factory=list)
    """Messages with shown impressions that no learner scored."""


def follow(kafka: KafkaSettings, spec: ModelSpec) -> Trail:
    """Read the topics of examples and scores, and compare them. Raises StreamError."""
    scored = _scored(read_all(kafka, scores_topic(spec.name)))
    return compare(read_all(kafka, examples_topic(spec.name)), scored, spec.fields)


def compare(records: Iterable[Record], scored: set[int], fields: FieldSet) -> Trail:
    """Compare records of examples with the counters they carry and with `scored`.

    scored: 64 bits of each scored impression id (`hash`).
    """
    trail, partitions = Trail(), dict[int, _Partition]()
    for record in records:
        number = record.source.partition
        partition = partitions.setdefault(number, _Partition())
        examples = unpack(record.value, fields)
        partition.examples += len(examples)
        where = f"{record.source.topic}/{number} at offset {record.offset}, {record.append_ms} ms"
        shown = np.flatnonzero(examples.kinds != Kind.CLICKED)
        ids = examples.impression_ids.take(shown).to_pylist()
        without = sum(hash(each) not in scored for each in ids)
        if without:
            trail.unscored.append(f"{where}: {without} of {len(ids)} impressions without a score")
        text = notes_of(record.value).checkpoint
        if not text:
            continue
        missing = _counted(text) - partition.examples
        if missing != partition.missing:
            change = missing - partition.missing
            trail.lost.append(f"{where}: {change:+} examples that the joiner counted are missing")
            partition.missing = missing
    return trail


def _counted(checkpoint: str) -> int:
    return msgspec.json.decode(checkpoint, type=SavedCheckpoint).checkpoint.counters.examples


def _scored(records: Iterable[Record]) -> set[int]:
    found: set[int] = set()
    for record in records:
        found.update(hash(each) for each in unpack_scores(record.value).impression_ids.to_pylist())
    return found
