"""Sends live events by key, as producers do, and counts the examples made of them."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.ingest.kafka.producer import BY_KEY, KafkaWriter
from headrace.ingest.kafka.protocols import Source

if TYPE_CHECKING:
    from tests.ingest.joiner.joined import Joined


FIELDS = """
[fields.article]
number = 1
transform = "id"
[label]
policy = "immediate"
window_s = 600
"""
MODEL = """
[model]
name = "{name}"
architecture = "logistic_regression"
"""


def identities(stem: str, count: int) -> list[str]:
    return [f"{stem}{i}" for i in range(count)]


def send_by_key(joined: Joined, *, shown: Iterable[str] = (), clicked: Iterable[str] = ()) -> None:
    """Send events by key, as a producer that has just started."""
    writer, now_ms = KafkaWriter(joined.settings), int(time.time() * 1000)
    for topic, identities, more in (
        (joined.topics.impressions, shown, {"article": 7}),
        (joined.topics.clicks, clicked, {}),
    ):
        for identity in identities:
            event = {"impression_id": identity, "request_id": "r", "timestamp_ms": now_ms, **more}
            if topic == joined.topics.clicks:
                del event["request_id"]
            writer.send(Source(topic, BY_KEY), json.dumps(event).encode(), identity.encode())
    writer.close()


def labels_of(joined: Joined) -> Counter[tuple[str, int]]:
    """Return how often each impression is an example with each label."""
    return Counter((identity, label) for _, _, label, identity, _ in joined.examples())
