"""A model in the parameter server, bucket by bucket, for a person to look at."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from deploy.observer import copied
from pserver.errors import Unreachable

if TYPE_CHECKING:
    from pserver.redis_store import RedisStore
    from pserver.replica import Replica
    from pserver.store import Answer

UNKNOWN = "-"


def inspect_store(store: RedisStore) -> Group:
    """Return the model's shape and a table of its buckets.

    Reads every row, as a server does at its start. Raises MissingModel, MissingBucket, Unreachable.
    """
    shape = store.shape()
    replica = copied(store)
    counts = np.bincount(shape.bucket_of(replica.table.ids), minlength=shape.buckets)
    table = Table("bucket", "node", "rows", "version", "log bytes", "age", "marks", box=None)
    for column in table.columns[2:6]:
        column.justify = "right"
    answers = store.marks(range(shape.buckets))
    for bucket, answer in enumerate(answers):
        rows = f"{counts[bucket]:,}"
        if isinstance(answer, Unreachable):
            table.add_row(str(bucket), store.node_of(bucket), rows, str(answer))
            continue
        table.add_row(
            str(bucket),
            store.node_of(bucket),
            rows,
            str(answer.version),
            f"{answer.log_bytes:,}",
            _age(replica, bucket),
            _marks(answer),
        )
    head = (
        f"{shape.model}: {shape.buckets} buckets, {shape.width} floats a row, spec "
        f"{shape.fingerprint}, {len(replica.table):,} rows"
    )
    return Group(Text(head), table)


def _age(replica: Replica, bucket: int) -> str:
    """Time since the append of the newest event that the bucket has learned from."""
    append_ms = replica.position(bucket).append_ms
    return f"{time.time() - append_ms / 1000:,.1f} s" if append_ms else UNKNOWN


def _marks(answer: Answer) -> str:
    # the topic's id is long and the same everywhere: its end is enough to tell two apart
    return ", ".join(
        f"{source.rpartition('/')[0][-4:]}/{source.rpartition('/')[2]}: {mark:,}"
        for source, mark in sorted(answer.marks.items())
    )
