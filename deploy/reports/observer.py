"""Observes a learning model from outside: its scores, its rates, and the state of its server.

It reads the topics of examples and scores as a consumer without a group, and queries the server
over HTTP. The results go into a `ModelComparison`. Rates are those of the last seconds.
"""

import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import orjson
from tenacity import (
    Retrying,
    retry_if_result,
    sleep_using_event,
    stop_after_delay,
    stop_when_event_set,
    wait_fixed,
)

from headrace.deploy.reports.model_comparison import Floats, ModelComparison
from headrace.ingest.examples.batch import unpack as unpack_examples
from headrace.ingest.kafka.protocols import PartitionAssigned, Record
from headrace.ingest.kafka.reading.consumer import KafkaReader
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import examples_topic, scores_topic
from headrace.learner.loop.scores import unpack as unpack_scores
from headrace.learner.models.factory import open_model
from headrace.learner.spec.model_spec import ModelSpec
from headrace.pserver.replica.replica import Replica, Stale
from headrace.pserver.rows.table import RowTable
from headrace.pserver.store import Store

RATE_OVER_S = 3.0
CATCH_UP_S = 5.0


class ServerStatus(NamedTuple):
    """State of a model on the server."""

    rows: int
    p50_ms: float | None
    p99_ms: float | None
    clicks: int
    """Number of clicks behind the percentiles, since the server started."""
    version: int
    """Sum of the versions of the buckets in its replica."""


def ask_server(address: str, model: str, timeout_s: float = 0.5) -> ServerStatus | None:
    """Return the state of the model, or None if the server does not answer now."""
    url = f"{address}/v1/models/{model}"
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:  # noqa: S310  (ours, http)
            body: dict[str, Any] = orjson.loads(answer.read())
    except (OSError, urllib.error.HTTPError, orjson.JSONDecodeError):
        return None
    freshness = body["freshness"]
    return ServerStatus(
        *(body["rows"], freshness["p50_ms"], freshness["p99_ms"], freshness["count"]),
        body["version"],
    )


def ask_caught_up(
    address: str, model: str, rows: Replica, stop: threading.Event
) -> ServerStatus | None:
    """Return the state of the model once the server's replica has caught up with these rows.

    The sum of versions tells. The server may lag on a busy machine. After 5 s, or when `stop` is
    set, the last state is returned.
    """
    version = sum(rows.position(bucket).version for bucket in rows.buckets)
    patient: Retrying = Retrying(
        retry=retry_if_result(lambda status: status is None or status.version < version),
        stop=stop_after_delay(CATCH_UP_S) | stop_when_event_set(stop),
        wait=wait_fixed(0.1),
        sleep=sleep_using_event(stop),
        retry_error_callback=lambda state: state.outcome and state.outcome.result(),
    )
    return patient(ask_server, address, model, 1.0)


def copied(store: Store, within_s: float = 60.0) -> Replica:
    """Return a complete replica. Raises Unreachable, MissingBucket."""
    replica = Replica(store, store.shape())
    deadline_s = time.monotonic() + within_s
    while not replica.complete:
        stale = [change for change in replica.poll() if isinstance(change, Stale)]
        if stale and time.monotonic() > deadline_s:
            raise stale[0].error
    return replica


def copy_rows(store: Store) -> RowTable:
    """Return a copy of all current rows of a model. Raises Unreachable, MissingBucket."""
    return copied(store).table


class Rate:
    """Turns a growing total into a rate over the last seconds."""

    def __init__(self, over_s: float = RATE_OVER_S) -> None:
        self._over_s = over_s
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, at_s: float, total: int) -> float:
        """Return the rate per second, given the current total."""
        seen = self._seen
        seen.append((at_s, total))
        while seen[0][0] < at_s - self._over_s and len(seen) > 2:
            seen.popleft()
        passed_s = at_s - seen[0][0]
        return (total - seen[0][1]) / passed_s if passed_s > 0 else 0.0


class Observer:
    """Reads the topics of a model from their current end into `comparison`. Call `close`."""

    def __init__(self, kafka: KafkaSettings, spec: ModelSpec) -> None:
        self._spec = spec
        self._scores = scores_topic(spec.name)
        self._reader = KafkaReader(kafka, None, [examples_topic(spec.name), self._scores])
        self._begun_s = time.monotonic()
        self._truths: deque[tuple[Sequence[str], Floats]] = deque()
        self.expected = 0
        """Impressions announced by `expect`."""
        self.comparison = ModelComparison()

    @property
    def at_s(self) -> float:
        """Seconds since `begin`."""
        return time.monotonic() - self._begun_s

    def begin(self) -> None:
        """Set the clock to zero."""
        self._begun_s = time.monotonic()

    def expect(self, impression_ids: Sequence[str], truth: Floats) -> None:
        """Announce impressions and their true probabilities. Called from one thread."""
        self._truths.append((impression_ids, truth))
        self.expected += len(impression_ids)

    def poll(self, timeout_s: float) -> None:
        """Read new messages. Wait up to `timeout_s` for the first."""
        while self._truths:
            self.comparison.add_truth(*self._truths.popleft())
        for happening in self._reader.poll(timeout_s):
            match happening:
                case PartitionAssigned(source):
                    self._reader.start({source: self._reader.bounds(source)[1]})
                case Record() if happening.source.topic == self._scores:
                    self.comparison.add_scores(unpack_scores(happening.value))
                case Record():
                    examples = unpack_examples(happening.value, self._spec.fields)
                    self.comparison.add_examples(examples, self.at_s)

    def freeze(self, rows: RowTable, buckets: int) -> None:
        """Compare from now on with a model that keeps these rows."""
        self.comparison.frozen = partial(open_model(self._spec, buckets).predict, rows)

    def close(self) -> None:
        """Disconnect from Kafka."""
        self._reader.close()
