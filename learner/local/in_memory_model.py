"""A model with all its rows in this process: learns batches of examples, predicts, saves, loads.

It has no store, no log and no marks, so nothing is pushed or pulled, and no row expires. A saved
model is a snapshot: `headrace serving run --snapshot` serves it, and `headrace pserver restore`
loads it into a parameter server. Without marks, a learner that continues from the snapshot starts
with the first example of its topic.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.ingest.examples.batch import Examples
from headrace.ingest.features.encoder import Encoded
from headrace.ingest.features.spec_text import SpecError
from headrace.learner.kernels.pending_deltas import PendingDeltas, view_of
from headrace.learner.models.factory import open_model
from headrace.learner.spec.compatibility import check_compatible
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from headrace.pserver.memory_store import MemoryStore
from headrace.pserver.replica.replica import Replica
from headrace.pserver.rows.row_codec import FoldedRows, sub_hashes_for
from headrace.pserver.snapshots.catalog import find_snapshot, list_snapshots
from headrace.pserver.snapshots.manifest import Manifest
from headrace.pserver.snapshots.restoration import restore
from headrace.pserver.snapshots.snapshot_errors import NoSnapshot
from headrace.pserver.snapshots.storage import SnapshotStorage
from headrace.pserver.snapshots.writer import SnapshotFacts, write_snapshot
from headrace.pserver.store import Shape
from headrace.runtime.clock import steady_ms, wall_ms

_BUCKETS = 16
"""Of the rows. A restore may split each of them, so a small model can grow into a large store."""


class InMemoryModel:
    """The rows of a spec, and the model on them. One thread uses it at a time.

    It can be pickled, with its memory of impressions: the copy learns on as the original would.

    Raises MissingTorch if the spec is of a deep model and torch is not installed; UnfitModule for a
    module of your own.
    """

    def __init__(self, spec: ModelSpec, buckets: int = _BUCKETS) -> None:
        self.spec = spec
        self._shape = Shape(spec.name, buckets, spec.width, spec.fingerprint, spec.text)
        self._model = open_model(spec, buckets)
        self._view = view_of(spec.width)
        self._pending = PendingDeltas(self._view, self._shape)
        self._active = np.ones(buckets, np.bool_)

    def __len__(self) -> int:
        """Return the number of rows that the model has."""
        return int(self._view.everything().exist().sum())

    @property
    def buckets(self) -> int:
        """Buckets that the rows are in."""
        return self._shape.buckets

    @property
    def rows(self) -> FoldedRows:
        """Copies of the rows, in ascending order of id."""
        return self._view.everything().existing()

    def layers_at(self, now_s: int) -> dict[str, npt.NDArray[np.float32]]:
        """Return copies of the layers by name, decayed to this second; empty without layers."""
        return self._model.layers_at(self._view, now_s)

    def __getstate__(self) -> dict[str, Any]:
        memory = self._model.memory
        return {"spec": self.spec.text, "buckets": self._shape.buckets, "rows": self.rows,
                "memory": memory}  # fmt: skip

    @classmethod
    def of_rows(cls, spec: ModelSpec, rows: FoldedRows, buckets: int = _BUCKETS) -> InMemoryModel:
        """Return the model of these rows, in so many buckets."""
        model = cls(spec, buckets)
        model._view.put(rows)
        model._view.changed()
        return model

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(parse_spec(state["spec"], "pickle"), state["buckets"])  # type: ignore[misc]
        self._view.put(state["rows"])
        self._view.changed()
        if "memory" in state:
            self._model.memory = state["memory"]

    def learn(self, examples: Examples) -> npt.NDArray[np.float64]:
        """Score each of n examples, then learn it; return the scores, shape (n,)."""
        self._view.reserve(self._model.rows_needed(examples))
        scores = self._model.learn(self._view, self._pending.reserve(), self._active, examples)
        # pending deltas are for pushes: here the view is all there is
        self._pending.take(range(self._shape.buckets))
        return scores

    def predict(
        self,
        features: Encoded,
        event_ms: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64] | None = None,
    ) -> npt.NDArray[np.float64]:
        """Return the probability of a click of n candidates; shape (n,). Changes nothing.

        ends: (n,) the first candidate after the request of each; None if all are of one request.
        """
        return self._model.predict(self._view, features, event_ms, ends)

    def save(self, folder: Path | str, marks: Mapping[str, int] | None = None) -> str:
        """Write the rows as a snapshot; return its name. Raises StorageFailed.

        `folder`: a folder, or a URL that fsspec knows; it may hold many snapshots. `marks`: topic
        id/partition -> the first offset that the rows have not learned, for learners that go on.
        """
        store = _memory_store()
        store.begin(self._shape)
        rows = self.rows
        of_row = self._shape.bucket_of(rows.ids)
        for bucket in range(self._shape.buckets):
            store.load(bucket, 1, marks or {}, [rows.chosen(of_row == bucket)])
        store.finish()
        written = write_snapshot(
            store,
            SnapshotStorage(str(folder)),
            SnapshotFacts(_version(), sub_hashes_for(self._shape.buckets)),
            now_ms=wall_ms,
            token=secrets.token_hex(2),
            stop=threading.Event(),
            tell=lambda _: None,
        )
        assert written is not None  # nothing stops it
        return written.name

    @classmethod
    def load(
        cls, folder: Path | str, name: str | None = None, *, spec: ModelSpec | None = None
    ) -> InMemoryModel:
        """Return the model of a snapshot.

        `name`: which snapshot of the folder; the newest if missing. `spec`: what the model must be;
        the snapshot's own if missing. Raises NoSnapshot, DamagedSnapshot, StorageFailed, WrongModel
        if `spec` differs, and SpecError if the snapshot would import a torch module that `spec`
        does not name.
        """
        storage = SnapshotStorage(str(folder))
        manifest = _manifest(storage, name, spec)
        own = parse_spec(manifest.spec, f"snapshot {manifest.name}")
        # the snapshot's own spec, too: its text may mean another model to this version
        check_compatible(own if spec is None else spec, manifest.shape)
        _check_module(own, "" if spec is None else spec.structure.module)
        model = cls(own, manifest.shape.buckets)
        store = _memory_store()
        restore(
            store,
            storage,
            manifest,
            manifest.shape,
            stop=threading.Event(),
            tell=lambda _: None,
        )
        replica = Replica(store, manifest.shape)
        while not replica.complete:
            replica.poll()
        model._pending.refresh(replica.table, replica.table.ids.copy(), None)
        return model


def _manifest(storage: SnapshotStorage, name: str | None, spec: ModelSpec | None) -> Manifest:
    """Return the snapshot that is meant. Raises NoSnapshot, DamagedSnapshot."""
    if name is None and spec is None:
        names = [listed.name for listed in list_snapshots(storage)]
        if not names:
            raise NoSnapshot(f"expected a saved model in {storage.url}, got none")
        name = names[-1]
    return find_snapshot(storage, "" if spec is None else spec.name, name)


def _check_module(own: ModelSpec, allowed: str) -> None:
    """Raise SpecError if the snapshot imports another module: that would run foreign code."""
    module = own.structure.module
    if module and module != allowed:
        raise SpecError(
            f"the snapshot's spec imports the torch module {module}, which runs its code: expected "
            f"a spec with this module (spec=), got {allowed or 'none'}"
        )


def _memory_store() -> MemoryStore:
    return MemoryStore(clock_ms=steady_ms, nonces=lambda: secrets.token_bytes(8))


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("headrace")
    except PackageNotFoundError:  # run from a checkout that was never installed
        return "unknown"
