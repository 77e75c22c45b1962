"""A small model, a store in memory with it, and a pusher."""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from headrace.ingest.features.encoder import Encoded, Encoder, Event
from headrace.learner.inputs.example_inputs import INTERCEPT
from headrace.learner.models.logistic import LogisticRegression
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from headrace.pserver.errors import Unreachable
from headrace.pserver.memory_store import MemoryStore
from headrace.pserver.replica.replica import Replica
from headrace.pserver.rows.deltas import EntryHeader, RowDeltas, SourceReached, pack
from headrace.pserver.store import BucketAnswer, OffsetSpan, PollResult, Push, Shape, Store
from headrace.runtime.http.bearer_tokens import Tokens
from headrace.runtime.http.server import Readiness
from headrace.runtime.http.token_grants import TokenGrant
from headrace.serving.api.app import AppParts, make_app
from headrace.serving.api.request_metrics import RequestMetrics
from headrace.serving.models.aliases import Aliases
from headrace.serving.models.predictor import Predictor
from headrace.serving.models.registry import ModelRegistry, ServedModel
from headrace.serving.observers.request_coverage import RequestCoverage
from headrace.serving.replicas.follower import Follower, Following
from headrace.serving.replicas.replica_metrics import FreshnessMetrics, ReplicaCollector
from headrace.serving.requests.limits import RequestLimits
from headrace.serving.requests.request_decoder import RequestDecoder
from tests.article_fields import ARTICLE_FIELDS

SPEC = f"""
[model]
name = "news"
architecture = "logistic_regression"

{ARTICLE_FIELDS}
[fields.slate]
number = 4
transform = "log_bucket"
source = "slate_size"

[fields.topics]
number = 5
transform = "bag"

[fields.price]
number = 6
transform = "number"
log1p = true

[fields.hour]
number = 7
transform = "hour"

[statistics.article_rate]
number = 40
statistic = "rate"
of = "article"

[optimizer]
name = "ftrl"
alpha = 0.5
"""
BUCKETS = 4
NOW_MS = 1_760_000_000_000


def news(model: str = "") -> ModelSpec:
    """model: further lines of the section of that name."""
    return parse_spec(SPEC.replace("[model]\n", "[model]\n" + model), "news.toml")


def shape_of(spec: ModelSpec) -> Shape:
    return Shape(spec.name, BUCKETS, spec.width, spec.fingerprint, spec.text)


def memory_store(spec: ModelSpec) -> MemoryStore:
    numbers = itertools.count(1)
    store = MemoryStore(clock_ms=lambda: NOW_MS, nonces=lambda: next(numbers).to_bytes(8, "little"))
    store.create(shape_of(spec))
    return store


class Pusher:
    """Pushes rounds like a learner: every bucket gets an entry that covers the offsets."""

    def __init__(self, store: Store, source: str = "topic/0") -> None:
        self._store, self._shape, self._source = store, store.shape(), source
        self._nonces = itertools.count(1)
        self.offset = 0

    def push(
        self,
        deltas: RowDeltas,
        *,
        append_ms: int = NOW_MS,
        clicks: Sequence[int] = (),
        buckets: Sequence[int] | None = None,
    ) -> None:
        """Push deltas as the next offset. `clicks`: append times of its clicks."""
        start, self.offset = self.offset, self.offset + 1
        of_row = self._shape.bucket_of(deltas.ids)
        traced = [(start, each) for each in clicks]
        for bucket in range(self._shape.buckets) if buckets is None else buckets:
            part = RowDeltas(*(column[of_row == bucket] for column in deltas))
            reached = SourceReached(self._source, start, self.offset, append_ms, traced)
            rows, width = part.values.shape
            blob = pack(EntryHeader(width, rows, append_ms, append_ms, [reached]), part)
            nonce = next(self._nonces).to_bytes(8, "little")
            span = OffsetSpan(self._source, start, self.offset)
            [answer] = self._store.push([Push(bucket, (span,), nonce, blob)])
            assert not isinstance(answer, Unreachable)
            assert answer.covers([span])
            traced = []


def deltas_of(features: Encoded, z: float) -> RowDeltas:
    """Return a gain for every row of these features: z, a show, and a click if z is negative."""
    ids = np.unique(np.concatenate([features.ids.reshape(-1), features.bag_ids]))
    return deltas_of_ids(ids, z)


def deltas_of_ids(ids: np.ndarray, z: float) -> RowDeltas:
    count = ids.shape[0]
    seconds = np.full(count, NOW_MS // 1000, np.uint32)
    values = np.column_stack([np.full(count, z, np.float32), np.ones(count, np.float32)])
    shows, clicks = np.ones(count, np.uint32), np.full(count, int(z < 0), np.uint32)
    return RowDeltas(ids, shows, clicks, seconds, seconds, values)


def deltas_of_article(spec: ModelSpec, article: object, z: float) -> RowDeltas:
    """Return a gain for the row of an article. A negative z makes a click more likely."""
    place = [each.name for each in spec.fields.singles].index("article")
    ids = Encoder(spec.fields).encode([{"article_id": article}]).ids[:, place]
    return deltas_of_ids(np.unique(ids), z)


def impressions_of(event: Event, times: int) -> RowDeltas:
    """Return the gains of an impression that is learned so many times."""
    ids = Encoder(news().fields).encode([event]).ids[0]
    deltas = deltas_of_ids(np.append(ids, np.uint64(INTERCEPT)), 0.0)
    return deltas._replace(shows=np.full(deltas.ids.shape[0], times, np.uint32))


class Fallible:
    """A store some of whose buckets do not respond."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.away: set[int] = set()
        self.failure: Exception | None = None

    def shape(self) -> Shape:
        return self._store.shape()

    def poll(self, after: Mapping[int, int], limit: int) -> list[PollResult | Unreachable]:
        if self.failure is not None:
            raise self.failure
        return [
            Unreachable(f"bucket {bucket}") if bucket in self.away else answer
            for bucket, answer in zip(after, self._store.poll(after, limit), strict=True)
        ]

    def marks(self, buckets: Sequence[int]) -> list[BucketAnswer | Unreachable]:
        return [
            Unreachable(f"bucket {bucket}") if bucket in self.away else answer
            for bucket, answer in zip(buckets, self._store.marks(buckets), strict=True)
        ]

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.ms = NOW_MS

    def __call__(self) -> int:
        return self.ms


class Serving:
    """A server without threads and ports. `follow` polls."""

    def __init__(
        self,
        store: Store,
        limits: RequestLimits | None = None,
        tokens: Sequence[str] = (),
        *,
        spec: ModelSpec | None = None,
    ) -> None:
        self.spec = news() if spec is None else spec
        self.clock, self.limits = Clock(), limits or RequestLimits()
        self.tokens, self.grants = Tokens(tokens), list[TokenGrant]()
        self.registry = CollectorRegistry()
        self.readiness = Readiness()
        self.model = LogisticRegression(self.spec, store.shape().buckets)
        self.predictor = Predictor(self.spec.fields, self.model)
        self.follower = Follower(
            Replica(store, store.shape()),
            Following(),
            self.clock,
            FreshnessMetrics(self.registry).of(self.spec.name),
        )
        decoder = RequestDecoder(self.spec.fields, self.limits)
        self.served = ServedModel(self.spec, decoder, self.predictor, self.follower)
        self.registry.register(ReplicaCollector([self.served], self.clock))

    @cached_property
    def app(self) -> FastAPI:
        models = ModelRegistry([self.served], Aliases([self.spec.name], {}, self.clock))
        coverage = RequestCoverage(models, self.clock)
        self.registry.register(coverage)
        return make_app(replace(self.parts(models), coverage=coverage))

    def parts(self, models: ModelRegistry, metrics: RequestMetrics | None = None) -> AppParts:
        return AppParts(
            models,
            metrics or RequestMetrics(self.registry),
            self.registry,
            self.clock,
            self.limits,
            self.readiness,
            self.tokens,
            grants=self.grants,
        )

    def follow(self) -> None:
        """Poll until the replica is complete and up to date."""
        follow(self.follower)

    def sample(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, {"model": self.spec.name, **labels})


def follow(follower: Follower) -> None:
    """Poll until the replica is complete, and once more for later entries."""

    def complete() -> bool:
        follower.step()
        return follower.status.complete

    eventually(complete)
    follower.step()


def eventually(true: Callable[[], object], within_s: float = 90.0) -> None:
    """Wait until a condition holds; fail after `within_s`."""
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, "did not come true in time"
        time.sleep(0.002)
