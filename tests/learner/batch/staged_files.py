"""Staged files for tests, the counters of one pass over their examples, and workers."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.ingest.examples.batch import Examples
from headrace.learner.batch.store_fit.partition_tasks import LearnTask
from headrace.learner.batch.store_fit.staged_file import STAGED, staged
from headrace.learner.batch.store_fit.store_trainer import Worker, learn_files
from headrace.learner.local.in_memory_model import InMemoryModel
from headrace.learner.spec.model_spec import ModelSpec
from headrace.pserver.memory_store import MemoryStore
from headrace.pserver.rows.row_codec import FoldedRows
from headrace.pserver.store import Store
from tests.learner.in_memory import cut


def write(path: Path, examples: Examples, size: int = 20) -> str:
    """Stage examples in small batches."""
    batches = [each for some in cut(examples, size) for each in staged(some)]
    columns = [pa.array(list(column)) for column in zip(*batches, strict=True)]
    pq.write_table(pa.table(columns, STAGED), path, row_group_size=3)
    return str(path)


def counters(rows: FoldedRows) -> dict[int, tuple[int, int]]:
    there = rows.existing()
    counted = zip(there.shows.tolist(), there.clicks.tolist(), strict=True)
    return dict(zip(there.ids.tolist(), counted, strict=True))


def one_pass(spec: ModelSpec, examples: Examples) -> dict[int, tuple[int, int]]:
    """Shows and clicks of each row after one pass in one process."""
    model = InMemoryModel(spec)
    model.learn(examples)
    return counters(model.rows)


class Ended:
    """A worker that has ended."""

    def __init__(self, exitcode: int) -> None:
        self.exitcode = exitcode

    def join(self, timeout: float | None = None) -> None:
        """Return at once."""

    def terminate(self) -> None:
        """Do nothing."""


def run_here(task: LearnTask, numbers: Sequence[int]) -> Worker:
    """Learn the files in this process."""
    learn_files(task, numbers)
    return Ended(0)


def one_store() -> tuple[MemoryStore, Callable[[str], Store]]:
    """Return a store in memory, and a function that opens it under any name."""
    made = MemoryStore(clock_ms=lambda: 0, nonces=lambda: np.random.default_rng().bytes(8))
    return made, lambda _: made
