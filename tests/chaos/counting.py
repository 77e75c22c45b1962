"""Counts the events of a run at its end: in Kafka, in the joiner's state and in the rows."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import numpy as np

from headrace.deploy.reports import copied, count_rows, read_refusals
from headrace.ingest.joiner import read_state
from headrace.ingest.kafka import EventTopics, read_all
from tests.chaos.accounting import Counted

if TYPE_CHECKING:
    from headrace.ingest.kafka import KafkaSettings
    from headrace.learner.spec import ModelSpec
    from headrace.pserver import Store


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
        read_refusals(kafka, spec).held.examples,
        rows.shows_by_field,
        rows.clicks_by_field,
    )


def _different(kafka: KafkaSettings, topic: str) -> int:
    """Count the different keys of a topic, by 64 bits of each."""
    keys = array("q", (hash(record.key) for record in read_all(kafka, topic)))
    return int(np.unique(np.frombuffer(keys, np.int64)).size)
