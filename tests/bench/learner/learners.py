"""Measures the speed that several learners of one stream add.

    python -m tests.bench.learners [--quick] [--json]

Real processes run on a real Kafka and Valkey. Learners join one by one, and the same examples are
sent again each time, with later times. If learners, stores and Kafka need more cores than the
machine has, the figures show the machine rather than headrace. The accuracy that several learners
cost is measured by `tests.bench.partitions`.
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

from headrace.deploy.demo.synthetic import SyntheticSite, SyntheticStream
from headrace.deploy.local.services.ports import free_port
from headrace.deploy.local.services.services import LocalServices
from headrace.deploy.local.services.waiting import wait_until
from headrace.deploy.models.shipped import path_of
from headrace.ingest.examples.batch import Examples, Kind, pack
from headrace.ingest.features.encoder import Encoder
from headrace.ingest.kafka.producer import KafkaWriter
from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import ensure_topics, examples_topic, topics_for
from headrace.learner.loop.marks.topic_marks import offsets_in
from headrace.learner.spec.model_spec import ModelSpec, load_spec
from headrace.pserver.errors import Unreachable
from headrace.pserver.redis_backend.redis_store import RedisStore, open_store
from headrace.pserver.store import Shape
from tests.bench.bench_options import bench_parser
from tests.learner.streams import part

LEARNERS = (1, 2, 4)
PARTITIONS, BUCKETS = 4, 16
BATCH = 1000
REQUESTS_S = 300
DEADLINE_S = 120.0


class Stream:
    """Examples in order of event time, again and again."""

    def __init__(self, spec: ModelSpec, seconds: int, seed: int) -> None:
        stream = SyntheticStream(SyntheticSite(), seed, 1_700_000_000_000)
        events: list[dict[str, Any]] = []
        shown: dict[str, dict[str, Any]] = {}
        for _ in range(seconds):
            happened = stream.step(stream.now_ms + 1000, REQUESTS_S)
            events += happened.impressions + happened.clicks
            shown |= {each["impression_id"]: each for each in happened.impressions}
        events.sort(key=lambda each: int(each["timestamp_ms"]))
        names = [each["impression_id"] for each in events]
        times = np.array([each["timestamp_ms"] for each in events], np.int64)
        labels = np.array(["item_id" not in each for each in events], np.uint8)
        self.examples = Examples(
            fingerprint=spec.fields.fingerprint,
            watermark_ms=int(times.max()),
            kinds=np.where(labels > 0, Kind.CLICKED, Kind.SHOWN).astype(np.uint8),
            labels=labels,
            event_ms=times,
            shown_ms=np.array([shown[name]["timestamp_ms"] for name in names], np.int64),
            append_ms=times,
            impression_ids=pa.array(names, pa.string()),
            request_ids=pa.nulls(len(names), pa.string()),
            features=Encoder(spec.fields).encode([shown[name] for name in names]),
            slices={},
        )

    def batches(self) -> list[Examples]:
        """Return the examples, so many a batch."""
        starts = range(0, len(self.examples), BATCH)
        return [part(self.examples, start, start + BATCH) for start in starts]

    def repeated(self, fingerprint: str) -> Iterator[bytes]:
        """Yield packed batches without end: the examples again and again, each time later."""
        times = self.examples.event_ms
        span_ms = int(times.max() - times.min()) + 1
        batches = [replace(batch, fingerprint=fingerprint) for batch in self.batches()]
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
                blobs = stream.repeated(made.spec.fields.fingerprint)
                count, there = len(stream.batches()) * rounds, 0
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
    options = parser.parse_args()
    file = path_of("demo")
    stream = Stream(load_spec(file), 20 if options.quick else 120, seed=1)
    settings = ("",) if options.quick else ("", "50ms", "10000", "batch")
    found = speed(file, stream, settings, 1 if options.quick else 2)
    if options.json:
        print(json.dumps({"examples": len(stream.examples), "speed": found}))
        return
    print(f"{len(stream.examples)} examples")
    for each in found:
        print(
            f"  {each['push_every']:>8} {each['learners']} learners: "
            f"{each['examples_s']:,.0f} examples/s"
        )


if __name__ == "__main__":
    main()
