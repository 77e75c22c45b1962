"""Measures a learner process: examples in Kafka become rows gained in two Valkey shards.

Kafka and Valkey are real, on this machine. The learner is that of `headrace learner
run`, in a process of its own. All examples are in the topic before it starts to read. The clock
starts when its first read returns something, with kernels compiled. It stops when the marks of
every bucket are at the end of the topic, which is polled every 20 ms. From then on, a killed
process loses nothing.

`burst`: no keeper runs, so the log holds everything that is learned. `steady`: a keeper folds
meanwhile, with shorter logs than by default. It keeps `STEADY_KEEP_BYTES` of each bucket, and the
learner waits at `STEADY_LOG_BYTES`. Measurement starts and ends when the logs have that length,
because a push carries tens of thousands of examples: at other times the count would be off by one
push. If the examples end earlier, measurement starts when there is something to trim, and the rate
is a lower bound. The rate is that of folding: examples applied since the start, minus the growth of
the logs (`log_growth_mb`).
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from headrace.deploy.local.kernel_warmup import warm
from headrace.deploy.local.services.services import LocalServices
from headrace.ingest.examples.batch import pack, unpack
from headrace.ingest.kafka.producer import KafkaWriter
from headrace.ingest.kafka.protocols import Record, Source
from headrace.ingest.kafka.reading.bounded_reader import read_all
from headrace.ingest.kafka.reading.consumer import KafkaReader
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import ensure_topics, examples_topic, scores_topic, topics_for
from headrace.learner import process
from headrace.learner.loop.marks.topic_marks import offsets_in
from headrace.learner.loop.pacing import LearnerPacing
from headrace.learner.loop.scores import unpack as unpack_scores
from headrace.learner.process import LearnerSettings, run_learner
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from headrace.pserver.errors import Unreachable
from headrace.pserver.keeper.bucket_lease import FoldPolicy
from headrace.pserver.keeper.process import KeeperSettings, run_keeper
from headrace.pserver.redis_backend.redis_store import RedisStore, open_store
from headrace.pserver.store import Shape
from tests.bench.learner.alone import begin_memory, memory_mb
from tests.bench.learner.stream import BATCH, Stream, batches_of

PARTITIONS, BUCKETS = 2, 8
STEADY_KEEP_BYTES, STEADY_LOG_BYTES = 2 << 20, 5 << 20
_LOOK_S = 0.02
_PATIENCE_S = 300.0


@dataclass(frozen=True, slots=True)
class Durable:
    """The results of a learner process."""

    examples: int
    rate: float
    memory_mb: float
    scores: npt.NDArray[np.float64]  # (examples,)
    log_growth_mb: float
    """Of unfolded entries while the rate was measured; negative if they became fewer."""


@dataclass(frozen=True, slots=True)
class Look:
    """The progress of the buckets at one time."""

    at_s: float
    examples: float  # applied in a bucket, on average
    log_bytes: int
    done: bool
    bytes_an_example: float = 0.0


class Workshop:
    """Kafka, Valkey, and a learner that takes its topics from a pipe. A context manager."""

    def __init__(self, specs: Sequence[ModelSpec], stream: Stream) -> None:
        """Specs of the same fields, compiled for beforehand, and the longest stream to learn."""
        self._fields_of, self._stream = specs[0], stream
        self._machine = LocalServices()
        context = multiprocessing.get_context("spawn")
        texts = [each.text for each in specs]
        self._pipe, self._learner_pipe = context.Pipe()
        self._keeper_pipe, self._kept_pipe = context.Pipe()
        self._learner = context.Process(
            target=_learner_process, args=(self._learner_pipe, texts), daemon=True
        )
        self._keeper = context.Process(target=_keeper_process, args=(self._kept_pipe,), daemon=True)

    def __enter__(self) -> Workshop:
        self._learner.start()
        self._keeper.start()
        for theirs in (self._learner_pipe, self._kept_pipe):
            theirs.close()  # so that it is closed when their process dies in any way
        # while they compile; what is written is the same for all models, since their fields are
        self._blobs = [pack(each) for each in batches_of(self._fields_of, self._stream)]
        self._machine.__enter__()
        self._kafka = KafkaSettings(self._machine.kafka)
        self._pipe.recv()  # it has compiled
        return self

    def __exit__(self, *_: object) -> None:
        for pipe, worker in ((self._pipe, self._learner), (self._keeper_pipe, self._keeper)):
            with suppress(OSError):
                pipe.send(None)
            worker.join(10.0)
            worker.kill()
        self._machine.__exit__(None, None, None)

    def learn(self, spec: ModelSpec, examples: int, steady_s: float = 0.0) -> Durable:
        """Learn so many examples from Kafka; steadily for so many seconds, in bursts if 0.

        Whole batches: up to one batch fewer.
        """
        blobs = self._blobs[: examples // BATCH]
        examples = len(blobs) * BATCH
        ends = self._fill(spec, self._completed(blobs))
        store = open_store(self._machine.redis, spec.name)
        store.create(Shape(spec.name, BUCKETS, spec.width, spec.fingerprint, spec.text))
        if steady_s:
            self._keeper_pipe.send((self._machine.redis, spec.name, STEADY_KEEP_BYTES))
            self._keeper_pipe.recv()
        limit = STEADY_LOG_BYTES if steady_s else LearnerPacing().log_bytes_limit
        self._pipe.send((self._machine.kafka, self._machine.redis, spec.text, limit))
        began_s = self._pipe.recv()
        looks = [Look(began_s, 0.0, 0, done=False)]
        until_s = time.monotonic() + _PATIENCE_S
        while not looks[-1].done and not (steady_s and when_held_up(looks, steady_s)):
            if time.monotonic() > until_s:
                raise TimeoutError(f"{looks[-1].examples} of {examples} examples learned")
            time.sleep(_LOOK_S)
            looks.append(_look(store, ends, examples))
        self._pipe.send("stop")
        memory = self._pipe.recv()
        if steady_s:
            self._keeper_pipe.send("stop")
            self._keeper_pipe.recv()
        first, last = steady_window(looks, steady_s) if steady_s else (looks[0], looks[-1])
        done, grown = last.examples - first.examples, last.log_bytes - first.log_bytes
        folded = done - max(0.0, grown / first.bytes_an_example) if steady_s else done
        scores = self._scores(spec, examples)
        store.drop()
        store.close()
        return Durable(
            round(done), folded / (last.at_s - first.at_s), memory, scores, grown / 2**20
        )

    def _completed(self, blobs: list[bytes]) -> list[bytes]:
        """Return the messages, the last of each partition with the watermark of a joiner that has
        joined all: without it, a learner waits a second for what may still come.
        """
        fields, most = self._fields_of.fields, max(0, len(blobs) - PARTITIONS)
        last = [unpack(blob, fields) for blob in blobs[most:]]
        joined_ms = max(each.watermark_ms for each in last) + fields.label.window_ms
        return [*blobs[:most], *(pack(replace(each, watermark_ms=joined_ms)) for each in last)]

    def _fill(self, spec: ModelSpec, blobs: list[bytes]) -> list[int]:
        """Write the examples in turns to the partitions; return where these end that have any,
        ascending.
        """
        ensure_topics(self._kafka, topics_for(spec.name, PARTITIONS))
        writer, ends = KafkaWriter(self._kafka), [0] * PARTITIONS
        try:
            for number, blob in enumerate(blobs):
                partition = number % PARTITIONS
                writer.send(Source(examples_topic(spec.name), partition), blob)
                ends[partition] += 1
        finally:
            writer.close()
        return sorted(filter(None, ends))

    def _scores(self, spec: ModelSpec, examples: int) -> npt.NDArray[np.float64]:
        """Read the scores that the learner wrote, up to where they are without a gap."""
        found = np.full(examples, np.nan)
        for record in read_all(self._kafka, scores_topic(spec.name)):
            scores = unpack_scores(record.value)
            places = scores.impression_ids.cast("int64").to_numpy()
            found[places] = np.where(np.isnan(found[places]), scores.scores, found[places])
        missing = np.flatnonzero(np.isnan(found))
        return found[: missing[0]] if missing.shape[0] else found


def _look(store: RedisStore, ends: list[int], examples: int) -> Look:
    """See how far the buckets are."""
    answers = store.marks(range(BUCKETS))
    at_s = time.time()
    known = [each for each in answers if not isinstance(each, Unreachable)]
    done = (
        all(sorted(offsets_in(each.marks).values()) == ends for each in known)
        and len(known) == BUCKETS
    )
    applied = sum(sum(offsets_in(each.marks).values()) for each in known) / max(1, len(known))
    log_bytes = sum(each.log_bytes for each in known)
    return Look(at_s, min(applied * BATCH, examples), log_bytes, done)


def when_held_up(looks: list[Look], steady_s: float) -> tuple[Look, Look] | None:
    """Return the first and the last look at logs so long that the learner was held up; None if they
    are not that far apart.
    """
    full = [each for each in looks if each.log_bytes >= 0.9 * STEADY_LOG_BYTES * BUCKETS]
    return (full[0], full[-1]) if full and full[-1].at_s - full[0].at_s >= steady_s else None


def steady_window(looks: list[Look], steady_s: float) -> tuple[Look, Look]:
    """Return the looks to measure between: while the learner was held up, else, if it was not for
    half as long before the examples ended, from where there was something to trim.
    """
    kept = next((each for each in looks if each.log_bytes >= STEADY_KEEP_BYTES * BUCKETS), None)
    if kept is None:
        raise ValueError(f"expected more examples, found {looks[-1]}: nothing had to be trimmed")
    first, last = when_held_up(looks, steady_s / 2) or (kept, looks[-1])
    # nothing was trimmed until there was as much as is kept: so an example takes so many bytes
    return replace(first, bytes_an_example=kept.log_bytes / kept.examples), last


def _learner_process(pipe: Connection, texts: list[str]) -> None:
    """Compile; then learn what the pipe names, each until told to stop."""
    for text in texts:
        warm(parse_spec(text, "bench.toml"))
    pipe.send("ready")
    while (told := pipe.recv()) is not None:
        kafka, redis, text, log_bytes_limit = told
        spec = parse_spec(text, "bench.toml")
        stop = threading.Event()
        waiting = threading.Thread(target=_wait_for_stop, args=(pipe, stop))
        telling = partial(_TellingReader, pipe, waiting)
        settings = LearnerSettings(pace=LearnerPacing(log_bytes_limit=log_bytes_limit))
        before = begin_memory()
        with patch.object(process, "KafkaReader", telling):
            run_learner(
                settings, KafkaSettings(kafka), partial(open_store, redis, spec.name), spec, stop
            )
        pipe.send(memory_mb(before))


def _wait_for_stop(pipe: Connection, stop: threading.Event) -> None:
    pipe.recv()
    stop.set()


class _TellingReader(KafkaReader):
    """Tells when the first examples are there."""

    def __init__(
        self, pipe: Connection, waiting: threading.Thread, *args: Any, **named: Any
    ) -> None:
        super().__init__(*args, **named)
        self._pipe, self._waiting, self._told = pipe, waiting, False

    def poll(self, timeout_s: float) -> Any:
        """As its parent."""
        found = super().poll(timeout_s)
        if not self._told and any(isinstance(each, Record) for each in found):
            self._told = True
            self._pipe.send(time.time())
            self._waiting.start()
        return found


def _keeper_process(pipe: Connection) -> None:
    """Keep the models that the pipe names, each until told to stop."""
    while (told := pipe.recv()) is not None:
        redis, name, keep_bytes = told
        stop, store = threading.Event(), open_store(redis, name)
        waiting = threading.Thread(target=_wait_for_stop, args=(pipe, stop))
        waiting.start()
        pipe.send("keeping")
        run_keeper(KeeperSettings(keeping=FoldPolicy(keep_bytes=keep_bytes)), store, stop)
        store.close()
        pipe.send("stopped")
