"""A joiner's output without a joiner: batches of examples into Kafka, and what must be learned.

The pool of impressions is encoded once; a batch draws from it. The draws are counted, so
the truth of every row's shows and clicks is a sum over the pool that owes nothing to the code under
test but the encoding of ids.
"""

import threading
import time

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.ingest.examples.batch import Examples, Kind, pack
from headrace.ingest.features.encoder import Encoded, Encoder
from headrace.ingest.kafka.producer import KafkaWriter
from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.reading.consumer import KafkaReader
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.learner.inputs.example_inputs import INTERCEPT
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from tests.running_server import SHARED_PARTITIONS

POOL = 3000
"""Impressions to draw from: some thousand rows, so that many batches meet in one row."""

_BETWEEN_BATCHES_S = 0.01
"""Some 100 batches and 2,000 examples a second: a load, but not of two cores."""

_SPEC = """
[model]
name = "{name}"
[fields.user]
number = 1
transform = "id"
[fields.item]
number = 2
transform = "id"
[fields.pair]
number = 3
transform = "cross"
of = ["user", "item"]
[optimizer]
alpha = 0.05
"""

Counts = dict[int, tuple[int, int]]
"""Id of a row -> shows, clicks."""


def spec_of(name: str) -> ModelSpec:
    """Return a small model: an intercept, two ids and their cross; no statistics."""
    return parse_spec(_SPEC.format(name=name), f"{name}.toml")


class Traffic:
    """Writes batches until told to stop, in a thread of its own."""

    def __init__(self, kafka: KafkaSettings, topic: str, spec: ModelSpec, seed: int) -> None:
        self._kafka, self._topic = kafka, topic
        self._dice = np.random.default_rng(seed)
        self._fingerprint = spec.fields.fingerprint
        events = [
            {"user": f"u{self._dice.integers(300)}", "item": f"i{self._dice.integers(50)}"}
            for _ in range(POOL)
        ]
        self._ids = Encoder(spec.fields).encode(events).ids  # (POOL, 3)
        self.drawn = np.zeros((POOL, 2), np.int64)
        """Shows and clicks of each impression of the pool."""
        self.batches = 0
        self.examples_a_batch = 20
        self._writer = KafkaWriter(kafka)
        self._stop: threading.Event | None = None
        self._thread = threading.Thread()

    def begin(self) -> None:
        """Write from now on."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write_on, args=(self._stop,), name="traffic")
        self._thread.start()

    def pause(self) -> None:
        """Stop writing; return when Kafka has all that was written."""
        if self._stop is not None:
            self._stop.set()
            self._thread.join()
            self._stop = None
            self._writer.flush()

    def write(self, batches: int) -> None:
        """Write so many batches now; not while writing on."""
        for _ in range(batches):
            self._write_one()
        self._writer.flush()

    def forget(self) -> None:
        """Forget the events written so far."""
        self.drawn[:] = 0

    def close(self) -> None:
        self.pause()
        self._writer.close()

    def ends(self) -> dict[str, int]:
        """Return the end of each partition, under its name in the marks."""
        reader = KafkaReader(self._kafka, group=None, topics=[self._topic])
        try:
            identity = reader.topic_id(self._topic)
            sources = [Source(self._topic, partition) for partition in range(SHARED_PARTITIONS)]
            return {f"{identity}/{s.partition}": reader.bounds(s)[1] for s in sources}
        finally:
            reader.close()

    def truth(self) -> Counts:
        """Return what every row must have counted."""
        rows = np.concatenate([self._ids[:, column] for column in range(self._ids.shape[1])])
        drawn = np.concatenate([self.drawn] * self._ids.shape[1])
        ids, places = np.unique(rows, return_inverse=True)
        sums = np.zeros((ids.shape[0], 2), np.int64)
        np.add.at(sums, places, drawn)
        counts = {int(i): (int(s), int(c)) for i, (s, c) in zip(ids, sums, strict=True) if s or c}
        shows, clicks = self.drawn.sum(axis=0).tolist()
        return {INTERCEPT: (shows, clicks), **counts}

    def _write_on(self, stop: threading.Event) -> None:
        while not stop.wait(_BETWEEN_BATCHES_S):
            self._write_one()

    def _write_one(self) -> None:
        chosen = self._dice.integers(POOL, size=self.examples_a_batch)
        clicked = self._dice.random(chosen.shape) < 0.2
        np.add.at(self.drawn, (chosen, clicked.astype(np.int64)), 1)
        target = Source(self._topic, self.batches % SHARED_PARTITIONS)
        self._writer.send(target, pack(self._examples(chosen, clicked)))
        self.batches += 1

    def _examples(self, chosen: npt.NDArray[np.int64], clicked: npt.NDArray[np.bool_]) -> Examples:
        count = chosen.shape[0]
        now = np.full(count, time.time_ns() // 1_000_000, np.int64)
        no_bags = np.zeros(0, np.uint64), np.zeros(1, np.int32)
        return Examples(
            fingerprint=self._fingerprint,
            watermark_ms=int(now[0]),
            kinds=np.where(clicked, Kind.CLICKED, Kind.SHOWN).astype(np.uint8),
            labels=clicked.astype(np.uint8),
            event_ms=now,
            shown_ms=now,
            append_ms=now,
            impression_ids=pa.array([f"{self.batches}-{i}" for i in range(count)], pa.string()),
            request_ids=pa.nulls(count, pa.string()),
            features=Encoded(self._ids[chosen], *no_bags, np.zeros((count, 0), np.float32)),
            slices={},
        )
