"""Snapshots of a small model, to be served."""

import threading
from pathlib import Path

from headrace.learner.spec.model_spec import ModelSpec
from headrace.pserver.memory_store import MemoryStore
from headrace.pserver.snapshots.manifest import Manifest
from headrace.pserver.snapshots.storage import SnapshotStorage
from headrace.pserver.snapshots.writer import SnapshotFacts, write_snapshot
from tests.serving.served_models import NOW_MS, Pusher, deltas_of_article, memory_store

LEARNED_MS = NOW_MS - 86_400_000


def learned(spec: ModelSpec, z: float = -3.0) -> MemoryStore:
    """A model that has learned of an article `hot`, a day ago; a click if z is negative."""
    store = memory_store(spec)
    Pusher(store).push(deltas_of_article(spec, "hot", z), append_ms=LEARNED_MS)
    return store


def snapshot_of(store: MemoryStore, folder: Path, at_ms: int = NOW_MS) -> Manifest:
    made = write_snapshot(
        store,
        SnapshotStorage(str(folder)),
        SnapshotFacts("test", 1),
        now_ms=lambda: at_ms,
        token="0123",
        stop=threading.Event(),
        tell=lambda _: None,
    )
    assert made is not None
    return made
