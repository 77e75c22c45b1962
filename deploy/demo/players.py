"""Sends the events of a demo to Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import orjson

from headrace.deploy.demo.live_stream import LiveStream, Throttle
from headrace.deploy.demo.synthetic import SyntheticEvents, SyntheticSite, SyntheticStream
from headrace.ingest.kafka.producer import BY_KEY, KafkaWriter
from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.topics import EventTopics
from headrace.runtime.clock import wall_ms

if TYPE_CHECKING:
    from headrace.deploy.local.pipeline import LocalPipeline, PipelineSettings
    from headrace.deploy.reports.observer import Observer

UPHEAVAL_SHARE = 0.5
"""Share of the demo after which all items of the synthetic site change their appeal."""
CLICKS_SHARE = 0.16
"""Click rate of the synthetic stream: N / (1 + this) of N events are impressions."""


@contextmanager
def playing(
    settings: DemoSettings, pipeline: LocalPipeline, observer: Observer
) -> Iterator[LiveStream]:
    """Create the stream, not started yet, and stop it on exit."""
    with closing(KafkaWriter(pipeline.kafka)) as writer:
        stream = _synthetic(settings, writer, observer)
        try:
            yield stream
        finally:
            stream.abandon()
            if stream.is_alive():
                stream.join()


def _synthetic(settings: DemoSettings, writer: KafkaWriter, observer: Observer) -> LiveStream:
    world = replace(
        SyntheticSite.lasting(settings.seconds),
        overturned_after_s=UPHEAVAL_SHARE * settings.seconds,
    )
    stream = SyntheticStream(world, settings.seed, wall_ms())

    topics = EventTopics()

    def send(happened: SyntheticEvents) -> None:
        # before the send, so that the truth is known before a score arrives
        observer.expect([e["impression_id"] for e in happened.impressions], happened.truth)
        for topic, events in (
            (topics.impressions, happened.impressions),
            (topics.clicks, happened.clicks),
        ):
            for event in events:
                key = event["request_id"].encode()
                writer.send(Source(topic, BY_KEY), orjson.dumps(event), key)

    throttle = Throttle(settings.events_s / (1 + CLICKS_SHARE))
    return LiveStream(
        stream, throttle, send, lambda: observer.expected - observer.comparison.scored
    )


LONGEST_PART_S = 60.0
"""The model is frozen after the first part; the last part is compared at the end."""


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """Settings of a demo."""

    pipeline: PipelineSettings
    seconds: float
    events_s: int
    """Synthetic impressions and clicks per second."""
    seed: int

    @property
    def part_s(self) -> float:
        """Length of the first part and of the last part, in seconds."""
        return min(LONGEST_PART_S, self.seconds / 3)
