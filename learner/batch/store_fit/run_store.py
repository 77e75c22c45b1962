"""The model of one run in a parameter server: created, folded, read, and dropped at the end.

A run that many processes learn has a model of its own there, so that runs of one spec can overlap.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.pserver.errors import MissingModel, Unreachable
from headrace.pserver.keeper.process import KeeperSettings, run_keeper
from headrace.pserver.replica.replica import Replica
from headrace.pserver.rows.row_codec import FoldedRows
from headrace.pserver.store import BucketAnswer, Shape, Store
from headrace.runtime.counted_nouns import counted

if TYPE_CHECKING:
    from headrace.learner.spec.model_spec import ModelSpec


def run_shape(spec: ModelSpec, buckets: int) -> Shape:
    """Return the shape of the model of a run."""
    return Shape(spec.name, buckets, spec.width, spec.fingerprint, spec.text)


def ensure_model(store: Store, shape: Shape) -> Shape:
    """Create the model if it is missing; return its shape in the store."""
    try:
        return store.shape()
    except MissingModel:
        store.create(shape)
        return shape


def heads_of(store: Store, shape: Shape) -> list[BucketAnswer]:
    """Return the heads of all buckets, with their marks. Raises Unreachable."""
    answers = store.marks(range(shape.buckets))
    heads = [each for each in answers if not isinstance(each, Unreachable)]
    if len(heads) < shape.buckets:
        raise Unreachable(
            f"{len(heads)} of {counted(shape.buckets, 'bucket')} of {shape.model} answered"
        )
    return heads


def rows_of(store: Store, shape: Shape) -> FoldedRows:
    """Return all rows of a model that nothing is pushed to any more."""
    heads = heads_of(store, shape)
    replica = Replica(store, shape)
    while not replica.complete or any(
        replica.position(each.bucket).version < each.version for each in heads
    ):
        replica.poll()
    return replica.table.everything().existing()


@contextmanager
def folded(store: Store, name: str) -> Iterator[None]:
    """Fold the logs of a model in a thread; close the store at the end. `name`: of the keeper."""
    stop = threading.Event()
    settings = KeeperSettings(name)
    keeper = threading.Thread(target=run_keeper, args=(settings, store, stop), daemon=True)
    keeper.start()
    try:
        yield
    finally:
        stop.set()
        keeper.join()
        store.close()
