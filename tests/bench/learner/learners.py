"""Measures several learners on one stream: the accuracy that staleness costs, the speed they add.

    python -m tests.bench.learners [--quick] [--json]

Accuracy is measured on a drifting stream with known truth (deploy.demo.synthetic). The learners
take turns in one process (tests.learner.loop.several), so the figures are reproducible to the
digit. They work off a backlog, where learners are as stale as they can be. In a turn every learner
gets a batch of 250 examples, which takes 10 ms; replies to pushes take 4 ms. The second half is
reported; the last line is the truth.

Speed is measured with real processes on a real Kafka and Valkey. Learners join one by one, and the
same examples are sent again each time, with later times. If learners, stores and Kafka need more
cores than the machine has, the figures show the machine rather than headrace.
"""

import contextlib
import itertools
import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import headrace.deploy.models
from headrace.deploy.demo.synthetic import SyntheticSite, SyntheticStream
from headrace.deploy.local.services.ports import free_port
from headrace.deploy.local.services.services import LocalServices
from headrace.deploy.local.services.waiting import wait_until
from headrace.ingest.examples.batch import Examples, Kind, pack
from headrace.ingest.features.encoder import Encoder
from headrace.ingest.kafka.producer import KafkaWriter
from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import ensure_topics, examples_topic, topics_for
from headrace.learner.loop.marks.topic_marks import offsets_in
from headrace.learner.loop.pacing import parse_push_interval
from headrace.learner.spec.model_spec import ModelSpec, load_spec
from headrace.learner.validation.progressive import auc, log_loss
from headrace.pserver.errors import Unreachable
from headrace.pserver.redis_backend.redis_store import RedisStore, open_store
from headrace.pserver.store import Shape
from tests.bench.bench_options import bench_parser
from tests.learner.loop.several import Turns
from tests.learner.streams import part

LEARNERS = (1, 2, 4)
SETTINGS = ("batch", "1000", "10000", "50ms", "400ms", "")
QUICK = ("batch", "10000", "50ms", "")
PARTITIONS, BUCKETS = 4, 16
BATCH = 250
REQUESTS_S = 300
DEADLINE_S = 120.0


class Stream:
    """Examples in order of event time, with labels and truth by impression."""

    def __init__(self, spec: ModelSpec, seconds: int, seed: int) -> None:
        stream = SyntheticStream(SyntheticSite(), seed, 1_700_000_000_000)
        shown: list[dict[str, Any]] = []
        clicks: list[dict[str, Any]] = []
        truth = []
        for _ in range(seconds):
            happened = stream.step(stream.now_ms + 1000, REQUESTS_S)
            shown += happened.impressions
            clicks += happened.clicks
            truth.append(happened.truth)
        place = {each["impression_id"]: i for i, each in enumerate(shown)}
        which = np.array(
            [*range(len(shown)), *(place[each["impression_id"]] for each in clicks)], np.int64
        )
        times = np.array([each["timestamp_ms"] for each in (*shown, *clicks)], np.int64)
        labels = np.repeat([0, 1], [len(shown), len(clicks)]).astype(np.uint8)
        order = np.argsort(times, kind="stable")
        which, times, labels = which[order], times[order], labels[order]
        self.truth = np.concatenate(truth)
        self.names = [each["impression_id"] for each in shown]
        self.clicked = np.isin(np.arange(len(shown)), which[labels > 0]).astype(np.uint8)
        self.examples = Examples(
            fingerprint=spec.fields.fingerprint,
            watermark_ms=int(times.max()),
            kinds=np.where(labels > 0, Kind.CLICKED, Kind.SHOWN).astype(np.uint8),
            labels=labels,
            event_ms=times,
            shown_ms=np.array([shown[i]["timestamp_ms"] for i in which], np.int64),
            append_ms=times,
            impression_ids=pa.array([self.names[i] for i in which], pa.string()),
            request_ids=pa.nulls(which.shape[0], pa.string()),
            features=Encoder(spec.fields).encode([shown[i] for i in which]),
            slices={},
        )

    def batches(self, size: int) -> list[Examples]:
        """Return the examples, so many a batch."""
        starts = range(0, len(self.examples), size)
        return [part(self.examples, start, start + size) for start in starts]

    def repeated(self, fingerprint: str, size: int) -> Iterator[bytes]:
        """Yield packed batches without end: the examples again and again, each time later."""
        times = self.examples.event_ms
        span_ms = int(times.max() - times.min()) + 1
        batches = [replace(batch, fingerprint=fingerprint) for batch in self.batches(size)]
        for later_ms in itertools.count(0, span_ms):
            for batch in batches:
                yield pack(
                    replace(
                        batch,
                        watermark_ms=batch.watermark_ms + later_ms,
                        event_ms=batch.event_ms + later_ms,
                        shown_ms=batch.shown_ms + later_ms,
                        append_ms=batch.append_ms + later_ms,
                    )
                )


def accuracy(spec: ModelSpec, stream: Stream, settings: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return AUC and log loss of the scores made before learning, for each setting."""
    batches, found = stream.batches(BATCH), []
    half = len(stream.names) // 2
    labels = stream.clicked[half:]
    for setting in settings:
        for learners in LEARNERS:
            bound = parse_push_interval(setting)
            turns = Turns(spec, batches, learners, bound, buckets=BUCKETS, turn_ms=10)
            begun_s = time.perf_counter()
            turns.run()
            made = turns.scores()
            scores = np.array([made[name] for name in stream.names[half:]])
            found.append(
                {
                    "push_every": setting or "at ease",
                    "learners": learners,
                    "auc": auc(labels, scores),
                    "log_loss": log_loss(labels, scores),
                    "seconds": time.perf_counter() - begun_s,
                }
            )
    found.append(
        {
            "push_every": "truth",
            "learners": 0,
            "auc": auc(labels, stream.truth[half:]),
            "log_loss": log_loss(labels, stream.truth[half:]),
            "seconds": 0.0,
        }
    )
    return found


class Road:
    """A model on the real servers, and the processes that learn it."""

    def __init__(
        self, machine: LocalServices, spec_file: Path, folder: Path, push_every: str
    ) -> None:
        self._machine, self._folder, self._push_every = machine, folder, push_every
        spec = load_spec(spec_file)
        name = re.sub(r"[^a-z0-9]", "-", f"bench-{push_every or 'at-ease'}")
        self._file = folder / f"{name}.toml"
        self._file.write_text(spec.text.replace(f'name = "{spec.name}"', f'name = "{name}"', 1))
        self.spec = load_spec(self._file)
        self._kafka = KafkaSettings(machine.kafka)
        ensure_topics(self._kafka, topics_for(name, PARTITIONS))
        self._store: RedisStore = open_store(machine.redis, name)
        self._store.create(Shape(name, BUCKETS, spec.width, self.spec.fingerprint, self.spec.text))
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pages: list[int] = []
        self._writer = KafkaWriter(self._kafka)
        self._sent = 0
        self._start("pserver", "keep")

    def _start(self, *command: str) -> None:
        reach = ("--model", str(self._file), "--redis", self._machine.redis)
        with (self._folder / "processes.log").open("ab") as log:
            full = [sys.executable, "-P", "-m", "headrace", *command, *reach]
            self._processes.append(subprocess.Popen(full, stdout=log, stderr=log))

    def join(self) -> None:
        """Start a learner."""
        port = free_port()
        self._pages.append(port)
        # the stream repeats, and a model that has learned it is surer of it than any traffic allows
        guard = ("--evidence", "inf")
        own = ("--metrics-port", str(port), "--push-every", self._push_every, *guard)
        self._start("learner", "run", "--kafka", self._machine.kafka, *own)

    def settle(self, blobs: Iterator[bytes]) -> None:
        """Send a little until every learner has learned some of it."""

        def all_at_work() -> bool:
            self.send(list(itertools.islice(blobs, PARTITIONS)))
            return min(map(_learned, self._pages)) > 0

        self._wait(all_at_work)
        self.wait()

    def send(self, blobs: list[bytes]) -> None:
        """Append batches, dealt to the partitions in turn."""
        for blob in blobs:
            self._writer.send(Source(examples_topic(self.spec.name), self._sent % PARTITIONS), blob)
            self._sent += 1
        self._writer.flush()

    def wait(self) -> None:
        """Return when every bucket has learned all that was sent."""
        self._wait(lambda: self._least() >= self._sent)

    def _least(self) -> int:
        answers = self._store.marks(range(BUCKETS))
        return min(
            0 if isinstance(a, Unreachable) else sum(offsets_in(a.marks).values()) for a in answers
        )

    def _wait(self, condition: Any) -> None:
        alive = wait_until(
            condition, DEADLINE_S, lambda: all(each.poll() is None for each in self._processes)
        )
        if not alive:
            raise RuntimeError((self._folder / "processes.log").read_text()[-4000:])

    def close(self) -> None:
        """End everybody."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(30)
        self._writer.close()
        self._store.close()


@contextlib.contextmanager
def road(*arguments: Any) -> Iterator[Road]:
    """A road whose processes end with it."""
    made = Road(*arguments)
    try:
        yield made
    finally:
        made.close()


def speed(spec_file: Path, stream: Stream, settings: tuple[str, ...], rounds: int) -> list[Any]:
    """Return examples a second with more and more learners."""
    found = []
    with tempfile.TemporaryDirectory() as folder, LocalServices() as machine:
        for setting in settings:
            with road(machine, spec_file, Path(folder), setting) as made:
                blobs = stream.repeated(made.spec.fields.fingerprint, 1000)
                count, there = len(stream.batches(1000)) * rounds, 0
                for learners in LEARNERS:
                    while there < learners:
                        made.join()
                        there += 1
                    made.settle(blobs)
                    backlog = list(itertools.islice(blobs, count))
                    begun_s = time.perf_counter()
                    made.send(backlog)
                    made.wait()
                    passed_s = time.perf_counter() - begun_s
                    found.append(
                        {
                            "push_every": setting or "at ease",
                            "learners": learners,
                            "examples_s": len(stream.examples) * rounds / passed_s,
                        }
                    )
    return found


def _learned(port: int) -> float:
    """Examples that a learner has learned, 0 if it does not answer yet."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
            text = page.read().decode()
    except OSError:
        return 0.0
    found = re.search(r"^headrace_learner_examples_total\{.*\} (\S+)$", text, re.MULTILINE)
    return float(found.group(1)) if found else 0.0


def main() -> None:
    """Measure and print."""
    parser = bench_parser("learners", __doc__, quick="less than a minute")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--accuracy-only", action="store_true", help="no servers")
    options = parser.parse_args()
    file = Path(headrace.deploy.models.__file__).parent / "demo.toml"
    spec = load_spec(file)
    stream = Stream(spec, 20 if options.quick else 120, options.seed)
    measured = accuracy(spec, stream, QUICK if options.quick else SETTINGS)
    found: dict[str, Any] = {"examples": len(stream.examples), "accuracy": measured, "speed": []}
    if not options.accuracy_only:
        settings = ("",) if options.quick else ("", "50ms", "10000", "batch")
        found["speed"] = speed(file, stream, settings, 1 if options.quick else 2)
    if options.json:
        print(json.dumps(found))
        return
    print(f"{found['examples']} examples")
    for each in found["accuracy"]:
        print(
            f"  {each['push_every']:>8} {each['learners']} learners: AUC {each['auc']:.4f}, "
            f"log loss {each['log_loss']:.4f} ({each['seconds']:.1f} s)"
        )
    for each in found["speed"]:
        print(
            f"  {each['push_every']:>8} {each['learners']} learners: "
            f"{each['examples_s']:,.0f} examples/s"
        )


if __name__ == "__main__":
    main()
