"""A model in memory: its store, its clock, and learners and keepers built on them.

The clock moves when a test moves it, and nonces come from a fixed seed, so a run is the same every
time. Everything is the product's own code over its fakes: a store in memory, a reader of a list, a
writer to a list, an exchange that pushes at once.
"""

import random
from collections.abc import Iterable, Sequence
from typing import Any

from headrace.ingest.examples.batch import Examples, pack
from headrace.ingest.kafka.fakes import ListReader, ListWriter
from headrace.ingest.kafka.protocols import Record, Source
from headrace.ingest.kafka.reading.record_fetcher import RecordFetcher
from headrace.learner.loop.cached_replica import CachedReplica
from headrace.learner.loop.exchange import DirectExchange, Exchange
from headrace.learner.loop.guard.batch_guard import BatchGuard
from headrace.learner.loop.learner import Learner
from headrace.learner.loop.marks.topic_marks import offsets_in
from headrace.learner.loop.outputs import KafkaOutputs
from headrace.learner.loop.pacing import LearnerPacing
from headrace.learner.loop.ports import LearnerClocks, LearnerPorts
from headrace.learner.models.factory import open_model
from headrace.learner.models.row_model import RowModel
from headrace.learner.models.sync_group import SyncGroup
from headrace.learner.spec.model_spec import ModelSpec
from headrace.pserver.keeper.bucket_lease import FoldPolicy
from headrace.pserver.keeper.keeper import Keeper
from headrace.pserver.memory_store import MemoryStore
from headrace.pserver.replica.replica import Replica
from headrace.pserver.rows.row_codec import FoldedRows
from headrace.pserver.store import BucketAnswer, Shape
from tests.learner.streams import BUCKETS, part

TOPIC = "examples.test"


def records_of(batches: Iterable[Examples], partition: int = 0) -> list[Record]:
    """One message a batch, as a joiner would have written them."""
    source = Source(TOPIC, partition)
    return [Record(source, offset, 1, pack(batch)) for offset, batch in enumerate(batches)]


def cut(examples: Examples, size: int) -> list[Examples]:
    """Cut a stream into batches of one size; the last may be smaller."""
    return [part(examples, begin, begin + size) for begin in range(0, len(examples), size)]


class InMemoryModel:
    """A model in a store in memory, and what works on it."""

    def __init__(self, spec: ModelSpec, buckets: int = BUCKETS, store: Any = None) -> None:
        """`store`: another one to create the model in."""
        self.now_ms, self.spec, self._dice = 0, spec, random.Random(5)
        self.store: Any = MemoryStore(clock_ms=self.now, nonces=self.nonce)
        self.store = self.store if store is None else store
        self.shape = Shape(spec.name, buckets, spec.width, spec.fingerprint, spec.text)
        self.store.create(self.shape)
        self.written = ListWriter()
        self.clocks = LearnerClocks(self.now, lambda seconds: None, self.nonce)

    def now(self) -> int:
        return self.now_ms

    def nonce(self) -> bytes:
        return self._dice.randbytes(8)

    def replica(self, store: Any = None) -> Replica:
        """A complete replica."""
        replica = Replica(self.store if store is None else store, self.shape)
        while not replica.complete:
            replica.poll()
        return replica

    def few_rows(self, model: RowModel, most_rows: int, store: Any = None) -> CachedReplica:
        """A complete cache of at most so many rows, more or less."""
        store = self.store if store is None else store
        replica = CachedReplica(store, self.shape, model.required_rows, most_rows)
        while not replica.complete:
            self.now_ms += 1  # a silent store is asked again later
            replica.poll()
        return replica

    def learner(
        self,
        records: Sequence[Record],
        pace: LearnerPacing,
        *,
        model: Any = None,
        replica: Replica | CachedReplica | None = None,
        store: Any = None,
        exchange: Exchange | None = None,
        clocks: LearnerClocks | None = None,
        guard: BatchGuard | None = None,
        group: SyncGroup | None = None,
        largest_poll: int = 3,
        reader: ListReader | None = None,
    ) -> Learner:
        """A learner of these records, each poll of which brings at most `largest_poll`.

        reader: another one, which has the records.
        """
        store = self.store if store is None else store
        by_source: dict[Source, list[Record]] = {}
        for record in records:
            by_source.setdefault(record.source, []).append(record)
        ports = LearnerPorts(
            reader or ListReader(by_source, largest_poll=largest_poll),
            KafkaOutputs(self.written, f"scores.{self.spec.name}"),
            store,
            DirectExchange(store) if exchange is None else exchange,
            RecordFetcher(lambda: ListReader(by_source)),
        )
        return Learner(
            ports,
            self.replica(store) if replica is None else replica,
            open_model(self.spec, self.shape.buckets) if model is None else model,
            self.spec.fields,
            pace,
            self.clocks if clocks is None else clocks,
            guard,
            group,
        )

    def keeper(self, keeping: FoldPolicy) -> Keeper:
        return Keeper(
            self.store,
            self.shape,
            name="keeper",
            keeping=keeping,
            now_ms=self.now,
            draw_nonce=self.nonce,
        )

    def answers(self) -> list[BucketAnswer]:
        """Marks and log sizes of all buckets that answer."""
        answers = self.store.marks(range(self.shape.buckets))
        return [answer for answer in answers if isinstance(answer, BucketAnswer)]

    def marks(self) -> list[dict[int, int]]:
        """Offset up to which each bucket has learned each partition."""
        return [
            {int(name.rpartition("/")[2]): mark for name, mark in offsets_in(answer.marks).items()}
            for answer in self.answers()
        ]

    def learned(self, ends: dict[int, int]) -> bool:
        """Whether every bucket has learned each partition up to its end."""
        return self.marks() == [ends] * self.shape.buckets

    def rows(self) -> FoldedRows:
        """All rows that exist, as any replica reads them."""
        return self.replica().table.everything().existing()
