"""Measures freshness and counts while learners join and leave with the load.

    python -m tests.bench.elastic [--quick] [--json] [--rate N]

The whole pipeline except live evaluation runs in real processes, on a real Kafka and a Valkey
Cluster: one joiner, keeper and server, and one to four learners without `--instance`. The events of
the demo's site come at a base rate, then at four times this rate for ten minutes, and at the base
rate again until one learner is left. Learners are started and stopped (SIGTERM) by the rule of the
chart's ScaledObject: the measured lag of the group in Kafka, and the rate of the joiner's examples
(`scaling_rule`). KEDA and Kubernetes do not run; their times are kept.

At the end, the counters in the rows must be those of the events, and each impression must have a
score. Freshness is the server's own measurement of all clicks, from their append to Kafka to its
replica. The exit status is 1 if the counts differ.

`--quick` divides all times by 40. The base rate fits a machine of two shared cores, which one
learner could serve at four times the rate: the benchmark shows that learners can come and go, not
that four learn faster than one.
"""

import json
import os
import re
import sys
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any

import orjson

from headrace.deploy.demo.live_stream import LiveStream, Throttle
from headrace.deploy.demo.synthetic import SyntheticEvents, SyntheticSite, SyntheticStream
from headrace.deploy.errors import PartFailed
from headrace.deploy.local.drain import Drain, DrainTimeout
from headrace.deploy.local.kernel_warmup import warm
from headrace.deploy.local.services.ports import free_port
from headrace.deploy.local.services.services import LocalServices
from headrace.deploy.local.services.waiting import wait_until
from headrace.deploy.local.supervisor import SupervisedPart, Supervisor
from headrace.deploy.models.shipped import path_of
from headrace.ingest.kafka.producer import BY_KEY, KafkaWriter
from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.reading.consumer import KafkaReader
from headrace.ingest.kafka.reading.offset_store import committed_by
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import EventTopics, ensure_topics, examples_topic, topics_for
from headrace.learner.spec.model_spec import load_spec
from headrace.pserver.redis_backend.redis_store import StoreSettings, open_store
from headrace.pserver.store import Shape
from headrace.runtime.clock import wall_ms
from tests.bench.bench_options import bench_parser
from tests.bench.pipeline.scaling_rule import Autoscaler, ScalingRule, rule_of_chart
from tests.chaos.accounting import differences, quantile_ms
from tests.chaos.counting import count
from tests.chaos.sampler import read_metrics
from tests.chaos.trail import follow

MODEL = path_of("demo")
PARTITIONS, BUCKETS, MOST_LEARNERS = 4, 8, 4
FACTOR = 4
BASE_S, LOADED_S = 120.0, 600.0
QUICK_SPEED = 40.0
_RATE_WINDOW_S = 60.0
"""That of the query in the chart."""
_LONGEST_S = 900.0
_READY_S, _STUCK_S = 120.0, 120.0
_EXAMPLES = re.compile(r"^headrace_joiner_examples_total\{[^}]*\} (\S+)$", re.MULTILINE)
_FRESHNESS = "headrace_server_freshness_seconds_bucket"


class Fleet:
    """The processes on started services. Learners are numbered and never start twice."""

    def __init__(self, stack: ExitStack, services: LocalServices) -> None:
        self.kafka, self.redis = KafkaSettings(services.kafka), services.redis
        self.spec = load_spec(MODEL)
        self.learners: list[str] = []
        self.started = 0
        self._ports = {name: free_port() for name in ("server", "joiner", "keeper")}
        logs = services.directory / "logs"
        self._supervisor = stack.enter_context(Supervisor(logs, remove=services.remove))

    def start(self) -> None:
        """Create topics and model, and start one process of each kind. Raises PartFailed."""
        ensure_topics(self.kafka, topics_for(self.spec.name, PARTITIONS))
        spec = self.spec
        with closing(open_store(self.redis, spec.name, StoreSettings())) as store:
            store.create(Shape(spec.name, BUCKETS, spec.width, spec.fingerprint, spec.text))
        warm(spec)
        port = str(self._ports["server"])
        self._start("server", "serving", "run", "--port", port, "--metrics-port", "0")
        self._start("keeper", "pserver", "keep", *self._metrics("keeper"))
        self._start("joiner", "ingest", "join", *self._metrics("joiner"))
        self.scale(1)
        self._wait_ready("server", "keeper", "joiner", *self.learners)

    def scale(self, replicas: int) -> None:
        """Start or stop learners; the youngest stop first. Does not wait for those that start."""
        while len(self.learners) < replicas:
            self.started += 1
            name = f"learner-{self.started}"
            self._ports[name] = free_port()
            self._start(name, "learner", "run", *self._metrics(name))
            self.learners.append(name)
        while len(self.learners) > replicas:
            self._supervisor.stop(self.learners.pop())

    def ready(self) -> int:
        """Return how many learners have their partitions."""
        return sum(bool(self._read(name, "/health/ready")) for name in self.learners)

    def examples(self) -> float | None:
        """Return how many examples the joiner has made. None: no answer."""
        found = _EXAMPLES.search(self._read("joiner", "/metrics"))
        return float(found[1]) if found else None

    def delays(self) -> dict[float, float]:
        """Return the clicks by upper bound of their delay, cumulative, since the start."""
        found = read_metrics(self._read("server", "/metrics"))
        return {float(label): value for (name, label), value in found.items() if name == _FRESHNESS}

    def check(self) -> None:
        """Raise PartFailed if a part has failed or was restarted."""
        self._supervisor.check()
        for name in ("server", "keeper", "joiner", *self.learners):
            if self._supervisor.restarts(name):
                raise PartFailed(f"expected {name} to run to the end, but it died")

    def _start(self, name: str, *words: str) -> None:
        common = ("--model", str(MODEL.resolve()), "--kafka", self.kafka.bootstrap)
        environment = {"HEADRACE_REDIS": self.redis}
        self._supervisor.start(SupervisedPart(name, (*words, *common), environment, grace_s=30.0))

    def _metrics(self, name: str) -> tuple[str, str]:
        return "--metrics-port", str(self._ports[name])

    def _read(self, name: str, path: str) -> str:
        try:
            url = f"http://127.0.0.1:{self._ports[name]}{path}"
            with urllib.request.urlopen(url, timeout=1.0) as answer:
                return str(answer.read(), "utf-8")
        except OSError:
            return ""

    def _wait_ready(self, *names: str) -> None:
        for name in names:

            def answers(name: str = name) -> bool:
                self._supervisor.check()
                return bool(self._read(name, "/health/ready"))

            if not wait_until(answers, _READY_S):
                raise PartFailed(f"expected {name} to be ready within {_READY_S:g} s")


class Load:
    """Events of the demo's site, at a rate that can be changed."""

    def __init__(self, kafka: KafkaSettings, rate: float) -> None:
        self._writer = KafkaWriter(kafka)
        self._throttle = Throttle(rate, least_s=rate)
        site = SyntheticSite(lifetime_s=float("inf"))  # bounds the number of rows
        stream = SyntheticStream(site, 1, wall_ms())
        self.stream = LiveStream(stream, self._throttle, self._send, lambda: 0)

    def change(self, rate: float) -> None:
        """Send so many impressions a second from now on."""
        self._throttle.least_s = self._throttle.events_s = self._throttle.rate_s = rate

    def finish(self) -> None:
        """Send the clicks that are due, and return when Kafka has every event."""
        self.stream.stop_showing()
        self.stream.join()
        self._writer.flush()
        if self.stream.failure is not None:
            raise self.stream.failure

    def close(self) -> None:
        """End the thread and disconnect."""
        self.stream.abandon()
        if self.stream.is_alive():
            self.stream.join()
        self._writer.close()

    def _send(self, happened: SyntheticEvents) -> None:
        topics = EventTopics()
        for topic, events in (
            (topics.impressions, happened.impressions),
            (topics.clicks, happened.clicks),
        ):
            for event in events:
                key = event["impression_id"].encode()
                self._writer.send(Source(topic, BY_KEY), orjson.dumps(event), key)


class Signals:
    """Measures what the ScaledObject asks for: the lag in Kafka, and the rate of examples."""

    def __init__(self, fleet: Fleet, window_s: float) -> None:
        self._fleet, self._window_s = fleet, window_s
        self._topic = examples_topic(fleet.spec.name)
        self._reader = KafkaReader(fleet.kafka, None, [self._topic], read_committed=False)
        self._made = deque[tuple[float, float]]()
        self.most_lag = 0

    def lag(self) -> int:
        """Return the messages that learners have not committed."""
        sources = [Source(self._topic, number) for number in range(PARTITIONS)]
        group = f"headrace.{self._fleet.spec.name}.learner"
        committed = committed_by(self._fleet.kafka, group, sources)
        lag = sum(self._reader.held(each)[1] - committed[each][0] for each in committed)
        self.most_lag = max(self.most_lag, lag)
        return lag

    def rate(self, now_s: float) -> float:
        """Return the examples per second in the window."""
        made = self._fleet.examples()
        if made is not None:
            self._made.append((now_s, made))
        while len(self._made) > 2 and self._made[1][0] <= now_s - self._window_s:
            self._made.popleft()
        if len(self._made) < 2 or self._made[-1][0] == self._made[0][0]:
            return 0.0
        (then_s, before), (at_s, after) = self._made[0], self._made[-1]
        return (after - before) / (at_s - then_s)

    def close(self) -> None:
        """Disconnect."""
        self._reader.close()


class Bench:
    """One run on a started fleet."""

    def __init__(self, fleet: Fleet, rule: ScalingRule, rate: float, speed: float) -> None:
        self._fleet, self._rule, self._rate, self._speed = fleet, rule, rate, speed
        self._scaler = Autoscaler(rule)
        self._began_s = time.monotonic()
        self.changes: list[dict[str, float]] = []
        self.phases: dict[str, dict[str, Any]] = {}
        self._seen: Mapping[float, float] = {}

    def play(self, load: Load, signals: Signals) -> None:
        """Play the three phases."""
        load.stream.start()
        rate, factor, speed = self._rate, FACTOR, self._speed
        self._phase("base", BASE_S / speed, load, signals)
        load.change(rate * factor)
        self._phase(f"x{factor}", LOADED_S / speed, load, signals)
        load.change(rate)
        self._phase("base again", _LONGEST_S, load, signals, until_one=True)

    def _phase(
        self, name: str, seconds: float, load: Load, signals: Signals, *, until_one: bool = False
    ) -> None:
        began_s, sent = time.monotonic(), load.stream.sent
        ready = most = 0
        while (now_s := time.monotonic()) < began_s + seconds:
            self._fleet.check()
            if load.stream.failure is not None:
                raise load.stream.failure
            present = len(self._fleet.learners)
            lag, rate = signals.lag(), signals.rate(now_s)
            wanted = self._scaler.replicas(now_s, present, lag, rate)
            if wanted != present:
                self._note(wanted, lag, rate)
                self._fleet.scale(wanted)
            ready, most = max(ready, self._fleet.ready()), max(most, wanted)
            if until_one and wanted == 1:
                break
            time.sleep(max(0.0, now_s + self._rule.polling_s - time.monotonic()))
        lasted_s = time.monotonic() - began_s
        self.phases[name] = {
            "seconds": round(lasted_s, 1),
            "events_per_second": round((load.stream.sent - sent) / lasted_s),
            "most_learners": most,
            "most_ready": ready,
            "freshness": self._freshness(),
        }

    def _note(self, wanted: int, lag: float, rate: float) -> None:
        at_s = round(time.monotonic() - self._began_s, 1)
        change = {"at_s": at_s, "learners": wanted, "lag": lag, "examples_per_second": round(rate)}
        self.changes.append(change)

    def _freshness(self) -> dict[str, float | None]:
        """Return the delays of the clicks since the last call."""
        now = self._fleet.delays()
        found = figures(now, self._seen)
        self._seen = now
        return found

    def whole(self) -> dict[str, float | None]:
        """Return the delays of all clicks."""
        return figures(self._fleet.delays(), {})


def figures(now: Mapping[float, float], before: Mapping[float, float]) -> dict[str, float | None]:
    """Return quantiles of the delays that came between two readings of a histogram."""
    new, below = dict[float, float](), 0.0
    for bound in sorted(now):
        up_to = now[bound] - before.get(bound, 0.0)
        new[bound], below = up_to - below, up_to
    quantiles = {f"p{share * 100:g}_ms": quantile_ms(new, share) for share in (0.5, 0.99)}
    rounded = {key: None if each is None else round(each) for key, each in quantiles.items()}
    return {"clicks": round(below), **rounded}


def counts(fleet: Fleet, impressions: int, clicks: int) -> tuple[dict[str, int], list[str]]:
    """Wait until every event is learned; return the counts and what differs."""
    spec = fleet.spec
    with closing(open_store(fleet.redis, spec.name, StoreSettings(read_only=True))) as store:
        with closing(Drain(fleet.kafka, spec, store)) as drain:
            drain.wait(threading.Event(), DrainTimeout(_STUCK_S), lambda _: fleet.check())
        counted = count(fleet.kafka, spec, store, impressions, clicks)
    trail = follow(fleet.kafka, spec)
    found = {
        "impressions": counted.impressions_in_kafka,
        "clicks": counted.clicks_in_kafka,
        "late_clicks": counted.late_clicks,
    }
    return found, [*differences(counted), *trail.lost, *trail.unscored]


def measure(rate: float, *, quick: bool) -> dict[str, Any]:
    """Run the pipeline and return the figures."""
    speed = QUICK_SPEED if quick else 1.0
    # one learner for the base rate with some room, four for the peak
    chart = rule_of_chart(MODEL, PARTITIONS, MOST_LEARNERS, round(1.25 * rate))
    rule = chart.faster(speed)
    with ExitStack() as stack:
        fleet = Fleet(stack, stack.enter_context(LocalServices()))
        fleet.start()
        signals = stack.enter_context(closing(Signals(fleet, _RATE_WINDOW_S / speed)))
        load = stack.enter_context(closing(Load(fleet.kafka, rate)))
        bench = Bench(fleet, rule, rate, speed)
        bench.play(load, signals)
        load.finish()
        counted, violations = counts(fleet, load.stream.impressions, load.stream.clicks)
        return {
            "rule": {"lag": chart.lag, "examples": chart.examples, "times_divided_by": speed},
            "phases": bench.phases,
            "changes": bench.changes,
            "learners_started": fleet.started,
            "learners_at_end": len(fleet.learners),
            "most_lag": signals.most_lag,
            "freshness": bench.whole(),
            "counted": counted,
            "violations": violations,
            "load_average": round(os.getloadavg()[0], 1),
            "cores": os.cpu_count(),
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return the exit status."""
    parser = bench_parser("elastic", __doc__, quick="a minute instead of twenty")
    parser.add_argument("--rate", type=float, default=400.0, help="impressions per second at first")
    options = parser.parse_args(arguments)
    found = measure(options.rate, quick=options.quick)
    print(json.dumps(found, indent=None if options.json else 2))
    return 1 if found["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
