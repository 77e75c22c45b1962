"""Staged files for tests, and the counters that one pass over their examples makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.learner.batch.staged_file import STAGED, staged
from headrace.learner.local.in_memory_model import InMemoryModel
from tests.learner.in_memory import cut

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.ingest.examples.batch import Examples
    from headrace.learner.spec.model_spec import ModelSpec
    from headrace.pserver.rows.row_codec import FoldedRows


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
