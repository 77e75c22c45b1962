"""Writes the stream of `tests.bench.learner` as a Parquet file, for learners of tables.

The columns `f1` to `f26` hold ids, `f27` to `f39` numbers. `time` is in milliseconds, and `clicked`
is the label.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.bench.learner.stream import IDS, START_MS, Stream


def write_table(
    stream: Stream, path: Path, begin: int = 0, end: int | None = None, group: int | None = None
) -> None:
    """Write the examples from `begin` to `end`, `group` rows in each row group."""
    rows = slice(begin, end)
    columns: dict[str, pa.Array] = {
        f"f{k + 1}": pa.array(stream.ranks[rows, k]) for k in range(stream.ranks.shape[1])
    }
    for k in range(stream.numbers.shape[1]):
        columns[f"f{IDS + 1 + k}"] = pa.array(stream.numbers[rows, k])
    columns["time"] = pa.array(START_MS + np.arange(len(stream))[rows])
    columns["clicked"] = pa.array(stream.labels[rows])
    pq.write_table(pa.table(columns), path, row_group_size=group)
