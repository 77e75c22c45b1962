"""A model with examples in Kafka, learned by learners in this process and counted per row."""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from headrace.ingest.examples.batch import Examples, Kind, pack
from headrace.ingest.kafka.producer import KafkaWriter
from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.reading.bounded_reader import offsets_at
from headrace.ingest.kafka.reading.consumer import KafkaReader
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import ensure_topics, examples_topic, topics_for
from headrace.learner.loop.marks.topic_marks import offsets_in
from headrace.learner.process import LearnerSettings, run_learner
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from headrace.pserver.errors import Unreachable
from headrace.pserver.redis_backend.redis_store import RedisStore, StoreSettings, open_store
from headrace.pserver.rows.row_codec import FoldedRows
from headrace.pserver.store import Shape
from tests.learner.streams import part, random_examples, random_spec
from tests.running_server import SHARED_PARTITIONS

DEADLINE_S = 240.0
"""A learner's kernels compile within it, in a fresh clone on a busy machine."""
FAR_MS = 1 << 52
SUB_HASHES = 8
BATCH = 40

Counts = dict[int, tuple[int, int]]


class LearnedModel:
    """Specs, topics and stores of one model, and what its rows must count."""

    def __init__(self, kafka: str, valkey: str, name: str, folder: Path, seed: int) -> None:
        self.kafka, self.valkey, self.folder = KafkaSettings(kafka), valkey, folder
        self.random = np.random.default_rng(seed)
        drawn = random_spec(self.random, "immediate", statistics=True)
        self.spec = parse_spec(drawn.text.replace('name = "test"', f'name = "{name}"'), "spec.toml")
        self.path = self.write_spec(self.spec)
        self.topic = examples_topic(name)
        self.shows: Counter[int] = Counter()
        self.clicks: Counter[int] = Counter()
        ensure_topics(self.kafka, topics_for(name, SHARED_PARTITIONS))

    def write_spec(self, spec: ModelSpec) -> Path:
        path = self.folder / f"{spec.name}.toml"
        path.write_text(spec.text)
        return path

    def renamed(self, name: str, **changes: str) -> ModelSpec:
        """The spec under another name, with lines replaced."""
        text = self.spec.text.replace(f'name = "{self.spec.name}"', f'name = "{name}"')
        for before, after in changes.items():
            assert before in text
            text = text.replace(before, after)
        spec = parse_spec(text, f"{name}.toml")
        self.write_spec(spec)
        ensure_topics(self.kafka, topics_for(name, SHARED_PARTITIONS))
        return spec

    def make(self, buckets: int) -> None:
        spec = self.spec
        with self.store() as store:
            store.create(Shape(spec.name, buckets, spec.width, spec.fingerprint, spec.text))

    @contextlib.contextmanager
    def store(self, name: str | None = None) -> Iterator[RedisStore]:
        store = open_store(
            self.valkey, name or self.spec.name, StoreSettings(sub_hashes=SUB_HASHES)
        )
        try:
            yield store
        finally:
            store.close()

    def produce(self, impressions: int, *, earlier_ms: int = 0) -> Examples:
        """Append examples to the topic, in batches, and count them.

        earlier_ms: by which their events had been appended before the others'.
        """
        examples = random_examples(self.random, self.spec, impressions, closed=False)
        examples = replace(examples, append_ms=examples.append_ms - earlier_ms)
        writer = KafkaWriter(self.kafka)
        for number, begin in enumerate(range(0, len(examples), BATCH)):
            target = Source(self.topic, number % SHARED_PARTITIONS)
            writer.send(target, pack(part(examples, begin, begin + BATCH)))
        writer.flush()
        writer.close()
        shown = examples.kinds == Kind.SHOWN
        self.shows.update(examples.features.ids[shown].ravel().tolist())
        self.clicks.update(examples.features.ids[~shown].ravel().tolist())
        return examples

    @property
    def counts(self) -> Counts:
        """Return the expected counters of the rows of single-valued fields."""
        return {each: (self.shows[each], self.clicks[each]) for each in self.shows | self.clicks}

    @contextlib.contextmanager
    def learning(self, spec: ModelSpec | None = None, examples_of: str = "") -> Iterator[None]:
        """A learner at work; what it raises is raised at the end."""
        spec, stop = spec or self.spec, threading.Event()
        failures: list[BaseException] = []

        def work() -> None:
            connect = partial(
                open_store, self.valkey, spec.name, StoreSettings(sub_hashes=SUB_HASHES)
            )
            settings = LearnerSettings(instance="test", examples_of=examples_of)
            try:
                run_learner(settings, self.kafka, connect, spec, stop)
            except BaseException as failure:  # noqa: BLE001
                failures.append(failure)

        thread = threading.Thread(target=work)
        thread.start()
        self.failures = failures
        try:
            yield
        finally:
            stop.set()
            thread.join()
        if failures:
            raise failures[0]

    def wait_learned(self, name: str | None = None) -> None:
        """Wait until every bucket has applied everything that is in the topic."""
        ends = offsets_at(self.kafka, self.topic, FAR_MS)
        reader = KafkaReader(self.kafka, None, [self.topic])
        identity = reader.topic_id(self.topic)
        reader.close()
        goal = {f"{identity}/{each.partition}": end for each, end in ends.items() if end}
        deadline_s = time.monotonic() + DEADLINE_S
        with self.store(name) as store:
            buckets = range(store.shape().buckets)
            while True:
                if self.failures:
                    raise self.failures[0]
                answers = store.marks(buckets)
                known = [a.marks for a in answers if not isinstance(a, Unreachable)]
                if len(known) == len(answers) and all(offsets_in(m) == goal for m in known):
                    return
                assert time.monotonic() < deadline_s, (goal, answers)
                threading.Event().wait(0.02)

    def forget_before(self, offsets: Mapping[Source, int]) -> None:
        """Delete the records before these offsets from Kafka."""
        admin = AdminClient(self.kafka.connection())
        before = [TopicPartition(each.topic, each.partition, n) for each, n in offsets.items()]
        for deleted in admin.delete_records(before).values():
            deleted.result(DEADLINE_S)

    def learn(self, spec: ModelSpec | None = None, examples_of: str = "") -> None:
        """Learn what there is."""
        with self.learning(spec, examples_of):
            self.wait_learned(spec.name if spec else None)


def counts_of(rows: FoldedRows, spec: ModelSpec) -> Counts:
    """Return the counters of the rows of single-valued fields."""
    singles = {each.number for each in spec.fields.singles}
    found = zip(rows.ids.tolist(), rows.shows.tolist(), rows.clicks.tolist(), strict=True)
    return {row: (shows, clicks) for row, shows, clicks in found
            if row & 1023 in singles and shows + clicks}  # fmt: skip
