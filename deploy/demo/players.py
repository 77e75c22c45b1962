"""Who sends the events of a demo: the synthetic stream, or a log that is served first."""

from __future__ import annotations

from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import orjson

from headrace.deploy.demo.live_stream import LiveStream, Throttle
from headrace.deploy.demo.synthetic import SyntheticSite, SyntheticStream
from headrace.deploy.local import PRODUCTION, BackgroundReplay, PipelineSettings
from headrace.deploy.reports import RankingClient, span_ms
from headrace.ingest.kafka import BY_KEY, EventTopics, KafkaWriter, Source
from headrace.ingest.runtime import wall_ms

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace.deploy.demo.synthetic import SyntheticEvents
    from headrace.deploy.local import LocalPipeline
    from headrace.deploy.reports import Observer

UPHEAVAL_SHARE = 0.5
"""Of the show have passed when what is liked on the synthetic site changes at once."""
LOG_SHARE = 0.95
"""Of the seconds, in which a log is replayed: it should come to its end."""
CLICKS_SHARE = 0.16
"""Of the synthetic impressions are clicked: of N events, N / (1 + this) are impressions."""


class Player(Protocol):
    """Sends events from a thread of its own."""

    failure: BaseException | None

    @property
    def sent(self) -> int:
        """Events sent so far."""

    def start(self) -> None:
        """Begin."""

    def is_alive(self) -> bool:
        """Whether there is more to come."""

    def stop_showing(self) -> None:
        """Show no more impressions; what must follow follows."""

    def abandon(self) -> None:
        """End at once."""

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end."""


@dataclass(frozen=True, slots=True)
class DemoPlayers:
    """A player that is not started yet, and what goes with it."""

    player: Player
    client: RankingClient | None = None
    """Who has the requests of a log served before they are sent."""
    speed: float | None = None
    """Of a log: times real time; None at full speed, and of the synthetic stream."""


@contextmanager
def playing(
    settings: DemoSettings, road: LocalPipeline, observer: Observer
) -> Iterator[DemoPlayers]:
    """Make the player; on leaving, end it."""
    with ExitStack() as stack:
        if settings.data is None:
            writer = stack.enter_context(closing(KafkaWriter(road.kafka)))
            made = DemoPlayers(_synthetic(settings, writer, observer))
        else:
            speed = settings.speed
            if speed is None and not settings.full_speed:
                speed = max(1.0, span_ms(settings.data) / 1000 / (LOG_SHARE * settings.seconds))
            url = f"{road.address}/v1/models/{PRODUCTION}:rank"
            client = stack.enter_context(RankingClient(url, road.spec.fields, observer.serve))
            log = BackgroundReplay(road.kafka, road.spec, [settings.data], speed, before=client.ask)
            made = DemoPlayers(log, client, speed)
        try:
            yield made
        finally:
            made.player.abandon()
            if made.player.is_alive():
                made.player.join()


def _synthetic(settings: DemoSettings, writer: KafkaWriter, observer: Observer) -> LiveStream:
    world = replace(
        SyntheticSite.lasting(settings.seconds),
        overturned_after_s=UPHEAVAL_SHARE * settings.seconds,
    )
    stream = SyntheticStream(world, settings.seed, wall_ms())

    topics = EventTopics()

    def send(happened: SyntheticEvents) -> None:
        # before Kafka has them, so that the truth is never later than the score
        observer.expect([e["impression_id"] for e in happened.impressions], happened.truth)
        for topic, events in (
            (topics.impressions, happened.impressions),
            (topics.clicks, happened.clicks),
        ):
            for event in events:
                key = event["impression_id"].encode()
                writer.send(Source(topic, BY_KEY), orjson.dumps(event), key)

    throttle = Throttle(settings.events_s / (1 + CLICKS_SHARE))
    return LiveStream(stream, throttle, send, lambda: observer.expected - observer.race.scored)


LONGEST_PART_S = 60.0
"""The model freezes after the first part, and the last part is what is compared in the end."""


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """What to show."""

    road: PipelineSettings
    seconds: float
    events_s: int
    """Synthetic impressions and clicks together."""
    seed: int
    data: Path | None
    """A log to replay instead."""
    speed: float | None
    """Of the log; None: so that it lasts `seconds`, or at full speed."""
    full_speed: bool
    chaos: bool = False
    """Kill the learner on stage, with SIGKILL, in the middle of the show."""

    @property
    def part_s(self) -> float:
        """Length of the first part and of the last."""
        return min(LONGEST_PART_S, self.seconds / 3)
