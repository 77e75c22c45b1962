"""Measures the time from a click in Kafka to the first answer that has learned from it.

    python -m tests.bench.freshness [--quick] [--json]

The whole pipeline except live evaluation runs in real processes, on a real Kafka and a Valkey
Cluster, with the model of the sample news, while 2,000 events a second are written. The benchmark
repeatedly shows two new articles. Once the server's answers include both, it clicks one of them,
and then asks the server about the two. The first answer with different scores is the first that
learned from the click.

`p50_ms`, `p99_ms`: from the click's append to Kafka to that answer. `stages`: the part until the
example is in Kafka (`joined`), and the part from there through learner, parameter server and
replica to the answer (`answered`). `server`: the server's own measurement of all clicks, other
events included, from their append to its replica.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import numpy.typing as npt
import orjson

from headrace.deploy.local.pipeline import LocalPipeline, PipelineSettings
from headrace.deploy.local.services.progress import SetupProgress
from headrace.ingest.examples.batch import Kind, unpack
from headrace.ingest.kafka.producer import BY_KEY, KafkaWriter
from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.reading.bounded_reader import read_all
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import examples_topic
from tests.bench.bench_options import bench_parser, print_figures

SPEC = Path(__file__).parents[3] / "deploy" / "models" / "news.toml"
EVENTS_PER_S = 2_000
CLICK_SHARE = 0.05
ARTICLES, USERS = 500, 5_000
_ASK_EVERY_S = 0.003
_CHANGE = 0.02
"""Of the odds of the clicked article to those of the other: what else is learned moves both alike,
a click moves one of them, by more than a twentieth."""
_PATIENCE_S = 10.0


def now_ms() -> int:
    """Wall clock in milliseconds."""
    return time.time_ns() // 1_000_000


class Traffic:
    """Events of everybody else, in a thread."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._writer = KafkaWriter(kafka)
        self._dice = np.random.default_rng(7)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.sent = 0

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._writer.close()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            for _ in range(EVENTS_PER_S // 100):
                self._send()
            due += 0.01

    def _send(self) -> None:
        name = f"t{self.sent}"
        event = event_of(name, f"a{self._dice.zipf(1.3) % ARTICLES}", f"u{self.sent % USERS}")
        self._writer.send(Source("impressions", BY_KEY), event, name.encode())
        self.sent += 1
        if self._dice.random() < CLICK_SHARE:
            self._writer.send(Source("clicks", BY_KEY), click_of(name), name.encode())
            self.sent += 1


def event_of(name: str, article: str, user: str) -> bytes:
    """Return an impression."""
    return orjson.dumps(
        {"impression_id": name, "timestamp_ms": now_ms(), "article_id": article, "user_id": user}
    )


def click_of(name: str) -> bytes:
    """Return a click."""
    return orjson.dumps({"impression_id": name, "timestamp_ms": now_ms()})


class Asking:
    """Asks the server for scores of articles."""

    def __init__(self, client: httpx.Client, model: str) -> None:
        self._client, self._path = client, f"/v1/models/{model}:predict"

    def odds(self, *articles: str) -> list[float]:
        """Return the odds of a click on each."""
        rows = [{"article_id": each} for each in articles]
        asked = {"context": {"user_id": "prober"}, "candidates": rows}
        answer = self._client.post(self._path, content=orjson.dumps(asked))
        answer.raise_for_status()
        scores = (each["score"] for each in orjson.loads(answer.content)["predictions"])
        return [float(each / (1 - each)) for each in scores]

    def shown(self, pair: Sequence[str]) -> bool:
        """Whether answers know both articles: until then they are as one never shown."""
        one, other, never = self.odds(*pair, "never-shown")
        return one != never != other

    def ratio(self, pair: Sequence[str]) -> float:
        """Return the odds of the first article over those of the second."""
        one, other = self.odds(*pair)
        return one / other


def until(true: Callable[[], bool]) -> float | None:
    """Ask until it is true; return when, Unix time in ms; None: it did not come true."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline_s:
        if true():
            return time.time() * 1000
        time.sleep(_ASK_EVERY_S)
    return None


def probe(kafka: KafkaSettings, asking: Asking, seconds: float) -> dict[str, float]:
    """Click new articles for so long; return when each click was first in an answer, by its id."""
    writer, answered = KafkaWriter(kafka, linger_ms=0), dict[str, float]()
    until_s, number = time.monotonic() + seconds, 0
    try:
        while time.monotonic() < until_s:
            pair = name, _ = f"probe-{number}", f"beside-{number}"
            number += 1
            for each in pair:
                event = event_of(each, each, "prober")
                writer.send(Source("impressions", BY_KEY), event, each.encode())
            writer.flush()
            if until(partial(asking.shown, pair)) is None:
                continue
            before = asking.ratio(pair)
            writer.send(Source("clicks", BY_KEY), click_of(name), name.encode())
            writer.flush()
            at_ms = until(lambda: abs(asking.ratio(pair) / before - 1) > _CHANGE)  # noqa: B023
            if at_ms is not None:
                answered[name] = at_ms
    finally:
        writer.close()
    return answered


def figures(samples: Sequence[float] | npt.NDArray[np.int64]) -> dict[str, float]:
    """Return the percentiles."""
    p50, p99 = np.percentile(samples, (50, 99))
    return {"p50_ms": round(float(p50), 1), "p99_ms": round(float(p99), 1)}


class Probes(NamedTuple):
    """When the click of each answered probe, and its example, were appended to Kafka, Unix ms."""

    clicked: dict[str, int]
    joined: dict[str, int]


def times(road: LocalPipeline, answered: dict[str, float]) -> Probes:
    """Read from the topics when clicks and examples of probes were appended."""
    clicked, joined = dict[str, int](), dict[str, int]()
    for record in read_all(road.kafka, "clicks"):
        name = (record.key or b"").decode()
        if name in answered:
            clicked[name] = record.append_ms
    for record in read_all(road.kafka, examples_topic(road.spec.name)):
        examples = unpack(record.value, road.spec.fields)
        places = np.flatnonzero(examples.kinds == Kind.CLICKED)
        names = examples.impression_ids
        for name in (names[int(place)].as_py() for place in places):
            if name in answered:
                joined.setdefault(name, record.append_ms)
    return Probes(clicked, joined)


def measured(
    road: LocalPipeline, answered: dict[str, float], server: dict[str, Any]
) -> dict[str, Any]:
    """Return the figures, once the topics say when clicks and examples were appended."""
    clicked, joined = times(road, answered)
    known = sorted(clicked.keys() & joined.keys())
    whole = figures([answered[name] - clicked[name] for name in known])
    return {
        **whole,
        "clicks": len(known),
        "stages": {
            "joined": figures([joined[name] - clicked[name] for name in known]),
            "answered": figures([answered[name] - joined[name] for name in known]),
        },
        "server": server["freshness"],
    }


def main() -> None:
    """Measure and print."""
    parser = bench_parser("freshness", __doc__, quick="seconds instead of ten minutes")
    options = parser.parse_args()
    road = LocalPipeline(PipelineSettings(model=SPEC, evaluate=False), SetupProgress())
    with road:
        road.start(threading.Event())
        with Traffic(road.kafka) as traffic, httpx.Client(base_url=road.address) as client:
            answered = probe(
                road.kafka, Asking(client, road.spec.name), 10.0 if options.quick else 600.0
            )
            server = client.get(f"/v1/models/{road.spec.name}").json()
        found = measured(road, answered, server) | {"events": traffic.sent}
    print_figures(found, as_json=options.json)


if __name__ == "__main__":
    main()
