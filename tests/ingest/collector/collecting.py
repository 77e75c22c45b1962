"""A collector without a network: its application over a Kafka producer in memory."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import httpx
from prometheus_client import CollectorRegistry, generate_latest

from headrace.ingest.collector.app import CollectorParts, make_app
from headrace.ingest.collector.backpressure import CollectorLimits, MemoryBound
from headrace.ingest.collector.collector_metrics import CollectorMetrics
from headrace.ingest.collector.delivery import Delivery
from headrace.ingest.events.json_schema import EventKind
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.runtime.http.bearer_tokens import Tokens
from headrace.runtime.http.server import Readiness
from headrace.runtime.http.token_grants import TokenGrant, TokenLimits
from tests.ingest.collector.fake_producer import FakeProducer

NOW_MS = 1_767_225_600_000
TOPICS = {EventKind.IMPRESSION: "impressions", EventKind.CLICK: "clicks"}


@dataclass(frozen=True, slots=True)
class Collector:
    """The parts of a collector under test."""

    http: httpx.AsyncClient
    kafka: FakeProducer
    delivery: Delivery
    bound: MemoryBound
    readiness: Readiness
    registry: CollectorRegistry

    def metrics(self) -> list[str]:
        return generate_latest(self.registry).decode().splitlines()


@contextlib.asynccontextmanager
async def collecting(
    limits: CollectorLimits | None = None,
    tokens: Sequence[str] = (),
    deadline_s: float = 15.0,
    grants: Sequence[TokenGrant] = (),
) -> AsyncIterator[Collector]:
    """Yield a collector with a fake producer; check afterwards that every limit is released."""
    kafka, bound, readiness = (
        FakeProducer(),
        MemoryBound(limits or CollectorLimits()),
        Readiness(),
    )
    delivery = Delivery(KafkaSettings("fake:9092"), deadline_s, 2, kafka.make)
    registry = CollectorRegistry()
    metrics = CollectorMetrics(registry)
    metrics.watch(bound, delivery)
    given = Tokens(tokens), TokenLimits(grants)
    app = make_app(
        CollectorParts(TOPICS, delivery, bound, *given, metrics, readiness, lambda: NOW_MS)
    )
    tasks = [asyncio.create_task(each) for each in (delivery.run(), delivery.probe())]
    transport = httpx.ASGITransport(app)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://collector") as http:
            yield Collector(http, kafka, delivery, bound, readiness, registry)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        delivery.close()
    assert (bound.requests, bound.events, bound.bytes) == (0, 0, 0)


async def until(happened: Callable[[], bool], deadline_s: float = 90.0) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(deadline_s):
        while not happened():
            await asyncio.sleep(0.001)
