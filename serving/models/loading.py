"""Loads models: from a model spec or a snapshot to a `ServedModel`.

Loading finds an operator's mistakes and stops the server: a spec that differs from the parameter
server's, two models of the same name, a missing snapshot. The rows come later, when the server
starts (`LocalRows.start`).
"""

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import NamedTuple

from prometheus_client import CollectorRegistry

from headrace.ingest.features.encoder import Encoder
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.learner.inputs.required_rows import RequiredRows
from headrace.learner.models.factory import open_model
from headrace.learner.spec.architecture import FACTORIZATION_MACHINE, LOGISTIC_REGRESSION
from headrace.learner.spec.compatibility import check_compatible
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from headrace.pserver.replica.replica import Replica
from headrace.pserver.rows.table import RowTable
from headrace.pserver.snapshots.catalog import find_snapshot, list_snapshots
from headrace.pserver.snapshots.manifest import Manifest, model_of
from headrace.pserver.snapshots.storage import SnapshotStorage
from headrace.pserver.store import Shape, Store
from headrace.runtime.clock import wall_ms
from headrace.serving.errors import ServingError
from headrace.serving.models.absent_rows import learned_shares
from headrace.serving.models.predictor import Predictor
from headrace.serving.models.registry import ServedModel
from headrace.serving.replicas.caching_follower import CacheBounds, CachingFollower
from headrace.serving.replicas.follower import Followed, Follower, Following
from headrace.serving.replicas.replica_metrics import CacheMetrics, FreshnessMetrics
from headrace.serving.replicas.snapshot_rows import SnapshotRows
from headrace.serving.replicas.status import LocalRows, TableRowSource
from headrace.serving.requests.candidates import Candidates
from headrace.serving.requests.limits import RequestLimits
from headrace.serving.requests.request_decoder import RequestDecoder

_NAME = re.compile(r"[a-z0-9_-]+")


class StoreModel(NamedTuple):
    """A model whose rows follow a parameter server."""

    spec: ModelSpec
    store: Store
    """Used by this server only until it returns. The server does not close it."""


class SnapshotModel(NamedTuple):
    """A snapshot to be served as a model."""

    spec: ModelSpec
    """The snapshot's spec, with the name to serve it under."""
    storage: SnapshotStorage
    manifest: Manifest

    @property
    def place(self) -> str:
        """URL of this snapshot; it stays the same when newer snapshots appear."""
        return f"{self.storage.url}/{self.manifest.name}"


def find_frozen(name: str, url: str, modules: Collection[str] = ()) -> SnapshotModel:
    """Return the snapshot to serve as the model `name`.

    url: a snapshot, or a folder of snapshots. From a folder the newest is taken: of the model
    `name`, or of the only model in the folder. modules: torch modules that the snapshot's spec may
    name. Their import runs code, and a snapshot may come from anywhere. Raises ServingError,
    SnapshotError, SpecError.
    """
    if not _NAME.fullmatch(name):
        raise ServingError(f"expected a model's name of a-z, 0-9, _ and -, got {name!r}")
    folder, _, last = url.rstrip("/").rpartition("/")
    chosen = last if model_of(last) else None
    storage = SnapshotStorage((folder or ("/" if url.startswith("/") else ".")) if chosen else url)
    model = name
    if chosen is None:
        there = sorted({each.model for each in list_snapshots(storage)})
        if name not in there and len(there) > 1:
            raise ServingError(
                f"{name}={url}: expected snapshots of {name}, or of one model only, got those "
                f"of {', '.join(there)}: name the snapshot, {url.rstrip('/')}/SNAPSHOT"
            )
        model = there[0] if name not in there and there else name
    manifest = find_snapshot(storage, model, chosen)
    spec = parse_spec(manifest.spec, f"{storage.url}/{manifest.name}")
    check_compatible(spec, manifest.shape)
    module = spec.structure.module
    if module and module not in modules:
        raise ServingError(
            f"{name}={url}: the snapshot's spec imports the torch module {module}, which runs its "
            f"code: expected --allow-module {module}, got "
            f"{', '.join(sorted(modules)) or 'no module allowed'}"
        )
    return SnapshotModel(replace(spec, name=name), storage, manifest)


def compatible_spec(
    models: Iterable[StoreModel | SnapshotModel],
) -> list[tuple[StoreModel | SnapshotModel, Shape]]:
    """Check the specs, and return the models with their shapes in the store or snapshot.

    Raises ServingError, WrongModel, and the store's error for a missing model.
    """
    found: dict[str, tuple[StoreModel | SnapshotModel, Shape]] = {}
    for each in models:
        name = each.spec.name
        if name in found:
            raise ServingError(f"expected models of different names, got {name} twice")
        if isinstance(each, SnapshotModel):
            shape = each.manifest.shape
        else:
            shape = each.store.shape()
            check_compatible(each.spec, shape)
        found[name] = each, shape
    return list(found.values())


class ModelLoader:
    """Loads models of one server. It keeps their metrics, which exist once for all models."""

    def __init__(
        self,
        following: Following,
        bounds: CacheBounds | None,
        limits: RequestLimits,
        registry: CollectorRegistry,
        relay: KafkaSettings | None = None,
    ) -> None:
        """bounds: row cache of each model that follows a store; None: full replicas.

        relay: Kafka with the topics of relays, which models read in place of a store's logs.
        """
        self._following, self._bounds, self._limits = following, bounds, limits
        self._relay = relay
        self._freshness = FreshnessMetrics(registry)
        self._cached = None if bounds is None else CacheMetrics(registry)

    def load(self, model: StoreModel | SnapshotModel, shape: Shape) -> ServedModel:
        """Return a model, ready to serve once its rows are started."""
        return served_by(model.spec, shape.buckets, self.rows(model, shape), self._limits)

    def rows(
        self,
        model: StoreModel | SnapshotModel,
        shape: Shape,
        table: RowTable | None = None,
        publish: Callable[[LocalRows], None] | None = None,
    ) -> LocalRows:
        """Return the rows of a model, before their start.

        table: where to keep all rows; None: a new table. publish: see `Follower`. A row cache has
        neither.
        """
        if isinstance(model, SnapshotModel):
            return SnapshotRows(model.storage, model.manifest, wall_ms, table, publish)
        arrived = self._freshness.of(model.spec.name)
        source: Followed
        if self._relay is not None:
            from headrace.serving.relaying.relayed_rows import open_relayed_rows

            source = open_relayed_rows(model.spec, shape, self._relay, table)
        elif self._bounds is None or self._cached is None:
            source = Replica(model.store, shape, table)
        else:
            required, counted = _required_rows(model.spec, shape), self._cached.of(model.spec.name)
            return CachingFollower(
                *(model.store, shape, required, self._bounds, self._following, wall_ms),
                *(arrived, counted),
            )
        return Follower(source, self._following, wall_ms, arrived, publish)

    def forget(self, name: str) -> None:
        """Drop the metrics of a model that was unloaded."""
        self._freshness.forget(name)
        if self._cached is not None:
            self._cached.forget(name)


def _required_rows(spec: ModelSpec, shape: Shape) -> RequiredRows:
    required = open_model(spec, shape.buckets).required_rows
    # compile or load the kernels now rather than during the first request
    nothing = Candidates({}, [{}])
    features, times = nothing.encode(Encoder(spec.fields), 0), nothing.times(0)
    required.of_features(features)
    required.of_statistics(RowTable(spec.width), features, times)
    return required


def served_by(spec: ModelSpec, buckets: int, rows: LocalRows, limits: RequestLimits) -> ServedModel:
    """Return a model ready to serve, with its kernels compiled."""
    predictor = Predictor(spec.fields, open_model(spec, buckets))
    # compile or load the kernels now rather than during the first request
    nothing = TableRowSource(RowTable(spec.width))
    predictor.predict(nothing, Candidates({}, [{}]), wall_ms())
    learned_shares(spec.fields, nothing, wall_ms())
    deep = spec.architecture not in (LOGISTIC_REGRESSION, FACTORIZATION_MACHINE)
    return ServedModel(
        spec,
        RequestDecoder(spec.fields, limits),
        predictor,
        rows,
        # a request that may wait for rows must not block the event loop
        deep or isinstance(rows, CachingFollower),
        Predictor(spec.fields, open_model(spec, buckets)) if deep else None,
    )
