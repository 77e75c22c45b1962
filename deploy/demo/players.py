"""Sends the events of a demo: the synthetic stream, or a log whose requests are served first."""

from __future__ import annotations

from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import orjson

from headrace.deploy.demo.live_stream import LiveStream, Throttle
from headrace.deploy.demo.synthetic import SyntheticSite, SyntheticStream
from headrace.deploy.local import PRODUCTION, BackgroundReplay, PipelineSettings
from headrace.deploy.reports import RankingClient, span_ms
from headrace.ingest.kafka import BY_KEY, EventTopics, KafkaWriter, Source
from headrace.ingest.logs import Line
from headrace.ingest.runtime import wall_ms

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace.deploy.demo.synthetic import Event, SyntheticEvents
    from headrace.deploy.local import LocalPipeline
    from headrace.deploy.reports import Observer

UPHEAVAL_SHARE = 0.5
"""Share of the demo after which all items of the synthetic site change their appeal."""
LOG_SHARE = 0.95
"""Share of the demo in which a log is replayed, so that the replay reaches its end."""
CLICKS_SHARE = 0.16
"""Click rate of the synthetic stream: N / (1 + this) of N events are impressions."""


class Player(Protocol):
    """Sends events in a thread."""

    failure: BaseException | None

    @property
    def sent(self) -> int:
        """Events sent so far."""

    def start(self) -> None:
        """Start sending."""

    def is_alive(self) -> bool:
        """Whether more events follow."""

    def stop_showing(self) -> None:
        """Send no more impressions. Clicks that are due still follow."""

    def abandon(self) -> None:
        """Stop at once."""

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end of the thread."""


@dataclass(frozen=True, slots=True)
class DemoPlayers:
    """A player that is not started yet, with the client of its requests."""

    player: Player
    client: RankingClient | None = None
    """Has the requests of a log served before their events are sent."""
    speed: float | None = None
    """Multiple of real time of a log. None: full speed, or the synthetic stream."""


@contextmanager
def playing(
    settings: DemoSettings, pipeline: LocalPipeline, observer: Observer
) -> Iterator[DemoPlayers]:
    """Create the player, and stop it on exit."""
    with ExitStack() as stack:
        if settings.data is None:
            writer = stack.enter_context(closing(KafkaWriter(pipeline.kafka)))
            client = None
            if settings.experiment:
                client = stack.enter_context(_client(pipeline, observer))
            players = DemoPlayers(_synthetic(settings, writer, observer, client), client)
        else:
            speed = settings.speed
            if speed is None and not settings.full_speed:
                speed = max(1.0, span_ms(settings.data) / 1000 / (LOG_SHARE * settings.seconds))
            client = stack.enter_context(_client(pipeline, observer))
            log = BackgroundReplay(
                pipeline.kafka, pipeline.spec, [settings.data], speed, before=client.ask
            )
            players = DemoPlayers(log, client, speed)
        try:
            yield players
        finally:
            players.player.abandon()
            if players.player.is_alive():
                players.player.join()


def _client(pipeline: LocalPipeline, observer: Observer) -> RankingClient:
    url = f"{pipeline.address}/v1/models/{PRODUCTION}:rank"
    return RankingClient(url, pipeline.spec.fields, observer.serve)


def _synthetic(
    settings: DemoSettings, writer: KafkaWriter, observer: Observer, client: RankingClient | None
) -> LiveStream:
    """Return the stream. client: has each request served before its events are sent."""
    world = replace(
        SyntheticSite.lasting(settings.seconds),
        overturned_after_s=UPHEAVAL_SHARE * settings.seconds,
    )
    stream = SyntheticStream(world, settings.seed, wall_ms())

    topics = EventTopics()

    def send(happened: SyntheticEvents) -> None:
        # before the send, so that the truth is known before a score arrives
        observer.expect([e["impression_id"] for e in happened.impressions], happened.truth)
        if client is not None:
            # on a machine that is far too busy, the stream goes on without the answers
            with suppress(TimeoutError):
                client.ask([_shown(event) for event in happened.impressions], 0.0)
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


def _shown(event: Event) -> Line:
    return Line(event["timestamp_ms"], False, event["impression_id"].encode(), orjson.dumps(event))


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
    data: Path | None
    """Log to replay. None: the synthetic stream."""
    speed: float | None
    """Multiple of real time of the log. None: the log lasts `seconds`, or full speed."""
    full_speed: bool
    chaos: bool = False
    """Kill the learner with SIGKILL during the demo."""
    experiment: bool = False
    """Run the experiment of `models/demo_experiment`, and promote an arm."""

    @property
    def part_s(self) -> float:
        """Length of the first part and of the last part, in seconds."""
        return min(LONGEST_PART_S, self.seconds / 3)
