"""A pipeline of real processes, working on a model while a test breaks the servers beneath.

Learners are `run_learner` as the command runs it, on the real Kafka; the keeper is `run_keeper`.
The follower is a server's replica, which must survive every fault. All are threads of this process,
with connections of their own. `Pipeline.settle` ends the load and waits until all of it is learned.
`Pipeline.verify` then compares the store with the expected rows, to the unit.
"""

import contextlib
import threading
from collections.abc import Callable

from headrace.deploy.local.services.waiting import wait_until
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import ensure_topics, examples_topic, topics_for
from headrace.learner.loop.marks.topic_marks import offsets_in
from headrace.learner.loop.pacing import LearnerPacing
from headrace.learner.process import LearnerSettings, run_learner
from headrace.pserver.errors import Unreachable
from headrace.pserver.keeper.bucket_lease import FoldPolicy
from headrace.pserver.keeper.process import KeeperSettings, run_keeper
from headrace.pserver.redis_backend.node_connection import WaitLimits
from headrace.pserver.redis_backend.redis_store import RedisStore, StoreSettings, open_store
from headrace.pserver.replica.replica import Replica
from headrace.pserver.store import BucketAnswer, Shape
from tests.faults.shards import DEADLINE_S, expect
from tests.faults.traffic import Counts, Traffic, spec_of
from tests.running_server import SHARED_PARTITIONS

BUCKETS = 16
WAITING = WaitLimits(connect_timeout_ms=1000, answer_timeout_ms=500)
KEEPING = FoldPolicy(keep_ms=400, keep_bytes=40_000, rows_a_fold=100, lease_ms=2000)
"""So that rows are folded and logs trimmed many times within a test."""


class Worker:
    """A thread that works until it is stopped or fails."""

    def __init__(self, name: str, work: Callable[[threading.Event], None]) -> None:
        self.name = name
        self.error: Exception | None = None
        self._stop = threading.Event()
        self._work = work
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work(self._stop)
        except Exception as error:  # noqa: BLE001 (the test asks for it)
            self.error = error

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


class Pipeline:
    """One model, its processes and its traffic. A context manager; what is left is ended."""

    def __init__(self, url: str, bootstrap: str, name: str, seed: int) -> None:
        self.url, self.kafka = url, KafkaSettings(bootstrap)
        self.spec, self.topic = spec_of(name), examples_topic(name)
        self.specs = topics_for(name, SHARED_PARTITIONS)
        ensure_topics(self.kafka, self.specs)
        self.store = self.connect()
        spec = self.spec
        self.shape = Shape(name, BUCKETS, spec.width, spec.fingerprint, spec.text)
        self.store.create(self.shape)
        self.traffic = Traffic(self.kafka, self.topic, spec, seed)
        self.follower = Replica(self.store, self.shape)
        self.workers: list[Worker] = []

    def connect(self) -> RedisStore:
        """Another connection to the model."""
        return open_store(self.url, self.spec.name, StoreSettings(WAITING, sub_hashes=4))

    # ---------------------------------------------------------------- who works

    def start(self, *, learners: int = 1, keeper: bool = True) -> None:
        """Let them work from now on."""
        for number in range(learners):
            self.learn(f"learner-{number}")
        if keeper:
            self.keep()
        self.follower = Replica(self.store, self.shape)
        self.workers.append(Worker("follower", self._follow))

    def learn(
        self, instance: str, accept_topic: str = "", pace: LearnerPacing | None = None
    ) -> Worker:
        """Start a learner with this name."""
        pace = pace or LearnerPacing()
        settings = LearnerSettings(instance, accept_topic=accept_topic, pace=pace)

        def work(stop: threading.Event) -> None:
            run_learner(settings, self.kafka, self.connect, self.spec, stop)

        self.workers.append(Worker(instance, work))
        return self.workers[-1]

    def keep(self) -> None:
        """Start a keeper."""

        def work(stop: threading.Event) -> None:
            with contextlib.closing(self.connect()) as store:
                run_keeper(KeeperSettings("keeper", idle_s=0.02, keeping=KEEPING), store, stop)

        self.workers.append(Worker("keeper", work))

    def _follow(self, stop: threading.Event) -> None:
        while not stop.wait(0.02):
            self.follower.poll()

    def stop(self) -> None:
        """Let everybody leave in good order."""
        for worker in self.workers:
            worker.stop()
        self.workers.clear()

    def close(self) -> None:
        """End everything and remove the model."""
        self.stop()
        self.traffic.close()
        with contextlib.suppress(Unreachable):
            self.store.drop()
        self.store.close()

    # ---------------------------------------------------------------- what is waited for

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Return when the condition holds. Raises the error of a stopped worker."""
        held = wait_until(condition, DEADLINE_S, lambda: all(w.alive for w in self.workers))
        for worker in self.workers:
            if worker.error is not None:
                raise AssertionError(f"{worker.name} was stopped") from worker.error
        expect(held, what)

    def until_learned(self, batches: int) -> None:
        """Return when every bucket has learned so many batches more than now."""
        goal = {
            b: sum(offsets_in(answer.marks).values()) + batches
            for b, answer in self.heads().items()
        }

        def learned() -> bool:
            return all(
                sum(offsets_in(a.marks).values()) >= goal[b] for b, a in self.heads().items()
            )

        self.until(learned, f"{batches} more batches learned")

    def until_all_learned(self) -> None:
        """Return when every mark is at the end of the topic. Nothing is written meanwhile."""
        ends = self.traffic.ends()

        def learned() -> bool:
            marks = [answer.marks for answer in self.heads().values()]
            return all(mark.get(name, 0) == end for mark in marks for name, end in ends.items())

        self.until(learned, f"all marks at {ends}")

    def until_all_stopped(self) -> dict[str, Exception]:
        """Return what stopped each worker, when something has stopped every one."""
        stopped = wait_until(lambda: not any(w.alive for w in self.workers), DEADLINE_S)
        expect(stopped, "everybody to stop")
        errors = {w.name: w.error for w in self.workers if w.error is not None}
        assert len(errors) == len(self.workers)
        self.workers.clear()
        return errors

    def heads(self) -> dict[int, BucketAnswer]:
        """Return the state of every bucket. Retries while a node does not answer."""
        found: dict[int, BucketAnswer] = {}

        def all_answered() -> bool:
            for answer in self.store.marks([b for b in range(BUCKETS) if b not in found]):
                if not isinstance(answer, Unreachable):
                    found[answer.bucket] = answer
            return len(found) == BUCKETS

        expect(wait_until(all_answered, DEADLINE_S), "every bucket to answer")
        return found

    def buckets_on(self, address: str) -> list[int]:
        """The buckets that the node at this address serves."""
        return [b for b in range(BUCKETS) if self.store.node_of(b) == address]

    # ---------------------------------------------------------------- the end

    def settle(self) -> None:
        """End the load, wait until all is learned and followed, and let everybody leave."""
        self.traffic.pause()
        self.until_all_learned()
        heads = self.heads()

        def followed() -> bool:
            return all(
                self.follower.copied(bucket)
                and self.follower.position(bucket).version >= head.version
                for bucket, head in heads.items()
            )

        if any(worker.name == "follower" for worker in self.workers):
            self.until(followed, "the follower at the heads")
        self.stop()

    def counts(self) -> Counts:
        """Return the counters of every row, from a fresh copy of rows and logs."""
        columns = self.copy().table.everything()
        return {
            int(i): (int(s), int(c))
            for i, s, c in zip(columns.ids, columns.shows, columns.clicks, strict=True)
            if s or c
        }

    def copy(self) -> Replica:
        """Return a replica copied just now."""
        replica = Replica(self.store, self.shape)

        def complete() -> bool:
            replica.poll()
            return replica.complete

        expect(wait_until(complete, DEADLINE_S), "a complete replica")
        return replica

    def verify(self) -> None:
        """Every row is the truth to the unit, and a replica that lived through it a fresh one."""
        assert self.traffic.truth() == self.counts()
        fresh = self.copy()
        self.follower.poll()
        for bucket in range(BUCKETS):
            assert self.follower.position(bucket).version == fresh.position(bucket).version
            assert self.follower.checksum(bucket) == fresh.checksum(bucket)
