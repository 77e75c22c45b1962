"""Counts the events of a run at its end: in Kafka, in the joiner's state and in the rows."""

from array import array
from collections.abc import Sequence

import numpy as np

from headrace.deploy.reports.observer import copied
from headrace.deploy.reports.refusals import read_refusals
from headrace.deploy.reports.report import count_rows
from headrace.ingest.examples.batch import Kind, unpack
from headrace.ingest.joiner.committed_state import read_state
from headrace.ingest.kafka.reading.bounded_reader import read_all
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import EventTopics, examples_topic
from headrace.learner.loop.marks.parked_requests import read_parked
from headrace.learner.spec.model_spec import ModelSpec
from headrace.pserver.store import Store
from tests.chaos.accounting import Counted


def count(
    kafka: KafkaSettings, spec: ModelSpec, store: Store, impressions: int, clicks: int
) -> Counted:
    """Count after every event was learned. `impressions` and `clicks` were acknowledged.

    Raises StreamError, StoreError.
    """
    rows = count_rows(copied(store).table, spec.fields)
    state = read_state(kafka, spec)
    topics = EventTopics()
    return Counted(
        impressions,
        clicks,
        _different(kafka, topics.impressions),
        _different(kafka, topics.clicks),
        state.late_clicks,
        state.unmatched_clicks,
        state.dead_letters,
        read_refusals(kafka, spec).quarantined_examples,
        rows.shows_by_field,
        rows.clicks_by_field,
        *_parked(kafka, spec, store),
    )


def _parked(kafka: KafkaSettings, spec: ModelSpec, store: Store) -> tuple[Sequence[str], int, int]:
    """Return the places of parked messages, and the impressions and clicks in them."""
    parked, buckets = read_parked(store), store.shape().buckets
    places = {(int(each.source.rpartition("/")[2]), each.offset): each for each in parked}
    shows = clicks = 0
    for record in read_all(kafka, examples_topic(spec.name)) if parked else ():
        if (record.source.partition, record.offset) in places:
            examples = unpack(record.value, spec.fields)
            shows += int((examples.kinds != Kind.CLICKED).sum())
            clicks += int(examples.labels.sum())
    listed = [
        f"parked at {partition}@{offset}"
        + (f" in {each.buckets} of {buckets} buckets" if each.buckets < buckets else "")
        for (partition, offset), each in places.items()
    ]
    return listed, shows, clicks


def _different(kafka: KafkaSettings, topic: str) -> int:
    """Count the different keys of a topic, by 64 bits of each."""
    keys = array("q", (hash(record.key) for record in read_all(kafka, topic)))
    return int(np.unique(np.frombuffer(keys, np.int64)).size)
