"""Staged files as sources of a parameter server: many processes learn a table, each row once.

A job first writes its examples to Parquet files, packed as the joiner packs them. Then a learner
learns each file, as it would learn a partition of a topic. In the marks of the buckets, each file
is a source of its own, and its offsets are rows:

    JOB/0    rows of the first file that a bucket has learned
    JOB/1    of the second

A push covers the rows that it learned, and a bucket applies it only if its mark is the first of
these rows (`pserver/store.py`). So any number of attempts may learn one file: a retry after a lost
machine, a speculative copy beside a slow attempt, an attempt that was believed dead. Each row
counts once in each bucket, and an attempt ends when all buckets have all rows, whichever attempt
pushed them. No attempt has to be fenced off, and nothing waits for all others.

Marks are rows of a file, so its rows must never change their order. That is why they are staged: a
partition of a table that is computed again may have other rows first. *Refused:* a barrier stage,
in which the loss of one process fails the whole stage.

A batch has the offset of its last row. Its mark is then the first row after it, and the batches of
a file, once written, begin and end at the same rows for every attempt.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import fsspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.ingest.examples.batch import Examples, pack, unpack
from headrace.ingest.examples.splitting import part_of
from headrace.ingest.features.fields import FieldSet
from headrace.ingest.kafka.protocols import (
    AtEnd,
    PartitionAssigned,
    ReaderEvent,
    ReadPosition,
    Record,
    Source,
)
from headrace.learner.batch.held_out_epochs import add_scores
from headrace.learner.loop.exchange import DirectExchange
from headrace.learner.loop.learner import Learner
from headrace.learner.loop.merging import ExampleBatch
from headrace.learner.loop.outputs import LearnerOutputs
from headrace.learner.loop.pacing import LearnerPacing
from headrace.learner.loop.ports import LearnerClocks, LearnerPorts
from headrace.learner.models.factory import open_model
from headrace.learner.spec.compatibility import check_compatible
from headrace.learner.spec.model_spec import ModelSpec
from headrace.learner.validation.log_loss_sum import LogLossSum
from headrace.pserver.errors import Unreachable
from headrace.pserver.replica.replica import Replica
from headrace.pserver.store import Store

STAGED = pa.schema([("rows", pa.int64()), ("examples", pa.binary())])
"""One row a batch of examples."""
_ROWS_A_BATCH = 4096
_BATCHES_A_POLL = 8
_LAST_OFFSET = (1 << 63) - 1
_FINISH_MS = 60_000
"""For the answers to the last pushes: longer than a failover."""


class StagedPlace(NamedTuple):
    """A staged file, and its name in the marks."""

    url: str
    job: str
    """Identifies the staged files of one job in the marks."""
    number: int
    """Of the file; with epochs, every pass over a file has a number of its own."""
    first: int = 0
    """Offset of the first row. Files that follow one another in one source have ascending ones."""

    @property
    def source(self) -> str:
        """The name in the marks."""
        return f"{self.job}/{self.number}"


def staged(examples: Examples) -> Iterator[tuple[int, bytes]]:
    """Yield the rows and the packed bytes of each batch that examples are staged in."""
    for begin in range(0, len(examples), _ROWS_A_BATCH):
        part = part_of(examples, begin, min(begin + _ROWS_A_BATCH, len(examples)))
        yield len(part), pack(part)


def staged_examples(url: str, fields: FieldSet) -> Iterator[Examples]:
    """Yield the batches of a staged file."""
    with fsspec.open(url, "rb") as opened:
        file = pq.ParquetFile(opened)
        for group in file.iter_batches(batch_size=_BATCHES_A_POLL, columns=["examples"]):
            for blob in group.column(0):
                yield unpack(blob.as_py(), fields)


class StagedFileReader:
    """Reads one staged file as a reader of Kafka reads one partition."""

    def __init__(self, place: StagedPlace) -> None:
        self._place = place
        with fsspec.open(place.url, "rb") as opened:
            rows = pq.read_table(opened, columns=["rows"])["rows"].to_numpy()
        self._ends = place.first + np.cumsum(rows)
        self._source = Source(place.job, place.number)
        self._news: list[ReaderEvent] = [PartitionAssigned(self._source)]
        self._batches: Iterator[Record] = iter(())
        self._started = self._paused = False

    @property
    def rows(self) -> int:
        """Rows of the file."""
        return self.end - self._place.first

    @property
    def end(self) -> int:
        """The offset after the last row."""
        return int(self._ends[-1]) if self._ends.shape[0] else self._place.first

    def poll(self, timeout_s: float) -> list[ReaderEvent]:  # noqa: ARG002 (a file never waits)
        """Return the next batches, and the end of the file once it is reached."""
        if self._news:
            news, self._news = self._news, []
            return news
        if not self._started or self._paused:
            return []
        found: list[ReaderEvent] = []
        for record in self._batches:
            found.append(record)
            if len(found) == _BATCHES_A_POLL:
                return found
        self._started = False  # the end is reported once
        return [*found, AtEnd(self._source, self.end)]

    def start(self, offsets: Mapping[Source, int]) -> None:
        """Read from this row on; it is the first of a batch, or the end."""
        self._batches = self._records(offsets[self._source])
        self._started = True

    def _records(self, offset: int) -> Iterator[Record]:
        first = int(np.searchsorted(self._ends, offset, side="right"))
        number = 0
        with fsspec.open(self._place.url, "rb") as opened:
            file = pq.ParquetFile(opened)
            for group in file.iter_batches(batch_size=_BATCHES_A_POLL, columns=["examples"]):
                for blob in group.column(0):
                    if number >= first:
                        end = int(self._ends[number])
                        yield Record(self._source, end - 1, 0, blob.as_py())
                    number += 1

    def pause(self, sources: Iterable[Source]) -> None:
        """Return nothing until `resume`."""
        self._paused = self._paused or self._source in set(sources)

    def resume(self, sources: Iterable[Source]) -> None:
        """Undo `pause`."""
        self._paused = self._paused and self._source not in set(sources)

    def bounds(self, source: Source, reached: int = 0) -> tuple[int, int]:  # noqa: ARG002
        """Return the offsets at which a learner may begin: none is refused.

        A mark below the first row is of an earlier file, one beyond the last of a later file.
        """
        return 0, _LAST_OFFSET

    def truncated(self, positions: Mapping[Source, ReadPosition]) -> list[Source]:  # noqa: ARG002
        """Return nothing: a staged file never changes."""
        return []

    def topic_id(self, topic: str) -> str:
        """Return the job, which is the topic of its files."""
        return topic

    def commit(self, offsets: Mapping[Source, int]) -> None:
        """Do nothing: the marks are the progress."""

    def close(self) -> None:
        """Drop the open file."""
        self._batches = iter(())


class SummedLoss(LearnerOutputs):
    """Adds up the loss of the scores of one file, each row once."""

    def __init__(self, loss: LogLossSum, first: int) -> None:
        """first: offset of the first row."""
        self._loss, self._next = loss, first

    def send_scores(self, batch: ExampleBatch, scores: npt.NDArray[np.float64]) -> None:
        """Add a batch, unless it was scored before a refused push."""
        if batch.offset >= self._next:
            self._next = batch.offset + 1
            add_scores(self._loss, batch.examples, scores)


class StagedFileLearner:
    """One attempt to learn a staged file into a parameter server."""

    def __init__(
        self,
        store: Store,
        spec: ModelSpec,
        place: StagedPlace,
        pace: LearnerPacing | None = None,
        clocks: LearnerClocks | None = None,
        loss: LogLossSum | None = None,
    ) -> None:
        """`loss` gets the scores made before learning.

        Raises the kinds of StoreError, and WrongModel if the store has another spec.
        """
        self._store, self._place = store, place
        self._clocks = clocks or LearnerClocks()
        shape = store.shape()
        check_compatible(spec, shape)
        self._buckets = shape.buckets
        replica = Replica(store, shape)
        while not replica.complete:
            replica.poll()
        self._reader = StagedFileReader(place)
        outputs = LearnerOutputs() if loss is None else SummedLoss(loss, place.first)
        ports = LearnerPorts(self._reader, outputs, store, DirectExchange(store))
        model = open_model(spec, shape.buckets)
        pacing = pace or LearnerPacing()
        self._learner = Learner(ports, replica, model, spec.fields, pacing, self._clocks)

    @property
    def rows(self) -> int:
        """Rows of the file."""
        return self._reader.rows

    def step(self) -> bool:
        """Learn and push some rows; return whether all buckets have all rows of the file."""
        if self._learner.step(0.0):
            return False
        if not self._learner.finish(self._clocks.steady_ms() + _FINISH_MS):
            return False
        return self.complete()

    def complete(self) -> bool:
        """Return whether all buckets have all rows of the file, by any attempt."""
        source, end = self._place.source, self._reader.end
        answers = self._store.marks(range(self._buckets))
        return all(
            not isinstance(each, Unreachable) and each.marks.get(source, 0) >= end
            for each in answers
        )

    def run(self) -> None:
        """Learn the file to its end. Raises the kinds of StoreError."""
        while not self.step():
            pass


def staged_places(
    urls: Sequence[str], job: str, epoch: int = 0, first: int = 0
) -> list[StagedPlace]:
    """Return the places of a job's files in one pass over them. `first`: offset of their rows."""
    begin = epoch * len(urls)
    return [StagedPlace(url, job, begin + number, first) for number, url in enumerate(sorted(urls))]
