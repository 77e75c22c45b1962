"""Sends the events of a synthetic site at a fixed rate, and has the server rank a sample of them.

The site is that of the demo without turnover of items, so that the number of rows, and with it the
memory of a correct process, is bounded. Appeals still drift, so that a stale model ranks worse.
"""

from __future__ import annotations

import queue
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING

import orjson

from headrace.deploy.demo.live_stream import LiveStream, Throttle
from headrace.deploy.demo.synthetic import (
    CLICKS_SHARE,
    Event,
    SyntheticEvents,
    SyntheticSite,
    SyntheticStream,
)
from headrace.deploy.reports.ranking_client import RankingClient, RequestStats
from headrace.ingest.kafka.producer import BY_KEY, KafkaWriter
from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.topics import EventTopics
from headrace.ingest.logs.ndjson import Line
from headrace.runtime.clock import wall_ms
from tests.chaos.accuracy import Accuracy

if TYPE_CHECKING:
    from tests.chaos.fleet import Fleet

ASKED_EVERY_S = 0.05
"""One request of the site in so much time is ranked by the server."""
WINDOW_S = 10.0
_LATE_S = 0.3
"""A sample that waited longer is skipped, because the model may know its outcome."""


class Traffic:
    """A stream of events and requests. `start`, then `finish`, which sends the last clicks."""

    def __init__(self, fleet: Fleet, rate: float, seed: int, began_s: float) -> None:
        """`began_s`: the steady time that all other times are relative to."""
        site = SyntheticSite(lifetime_s=float("inf"))
        self._began_s, self._slate = began_s, site.slate
        self.accuracy = Accuracy(WINDOW_S, site.longest_delay_s + 2.0)
        self._writer = KafkaWriter(fleet.kafka)
        self._client = RankingClient(fleet.ranking_url, fleet.spec.fields, self.accuracy.score)
        self._samples: queue.SimpleQueue[tuple[float, list[Event]] | None] = queue.SimpleQueue()
        self._sampled_s = 0.0
        self._stream = LiveStream(
            SyntheticStream(site, seed, wall_ms()),
            # nothing slows it down: the rate is the test
            Throttle(rate / (1 + CLICKS_SHARE), least_s=rate),
            self._send,
            lambda: 0,
        )
        self._asking = threading.Thread(target=self._ask, name="asking", daemon=True)

    @property
    def impressions(self) -> int:
        """Impressions handed to Kafka's client."""
        return self._stream.impressions

    @property
    def clicks(self) -> int:
        """Clicks handed to Kafka's client."""
        return self._stream.clicks

    @property
    def requests(self) -> RequestStats:
        """Counts of the ranking requests."""
        return self._client.stats

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the stream."""
        return self._stream.failure

    def start(self) -> None:
        """Begin to send."""
        self._stream.start()
        self._asking.start()

    def finish(self) -> None:
        """Send the clicks that are still due, and return when Kafka has every event.

        Raises StreamError if Kafka did not take an event.
        """
        self._stream.stop_showing()
        self._stream.join()
        self._samples.put(None)
        self._asking.join()
        self._writer.flush()

    def close(self) -> None:
        """End everything."""
        self._stream.abandon()
        self._samples.put(None)
        with closing(self._writer):
            if self._stream.is_alive():
                self._stream.join()

    def _send(self, happened: SyntheticEvents) -> None:
        at_s = time.monotonic() - self._began_s
        if happened.impressions and at_s - self._sampled_s >= ASKED_EVERY_S:
            self._sampled_s = at_s
            sample = happened.impressions[: self._slate]
            ids = [event["impression_id"] for event in sample]
            self.accuracy.show(at_s, ids, happened.truth[: self._slate].tolist())
            self._samples.put((time.monotonic(), sample))
        topics = EventTopics()
        for topic, events in (
            (topics.impressions, happened.impressions),
            (topics.clicks, happened.clicks),
        ):
            for event in events:
                key = event["impression_id"].encode()
                self._writer.send(Source(topic, BY_KEY), orjson.dumps(event), key)
        self.accuracy.click([event["impression_id"] for event in happened.clicks])

    def _ask(self) -> None:
        with self._client as client:
            while (sample := self._samples.get()) is not None:
                asked_s, events = sample
                lines = [
                    Line(e["timestamp_ms"], False, e["impression_id"].encode(), orjson.dumps(e))
                    for e in events
                ]
                client.ask(lines, time.monotonic() - asked_s + 0.5 - _LATE_S)
