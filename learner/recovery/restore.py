"""Restores a snapshot: as the same model, as a copy, or as the start of a larger model.

A copy has another name and continues from the same examples. A larger model has more fields; it
starts "warm" from the snapshot's rows, and its examples are its own.

A restore fills what is missing. A store that lost buckets gets those; an empty one gets the whole
model; and if even the model's shape was lost with its shard, the snapshot has it. How a bucket is
filled is in `pserver/snapshots/restoration.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headrace.ingest.examples.batch import UnreadableExamples
from headrace.ingest.kafka.reading.bounded_reader import read_all
from headrace.ingest.kafka.reading.consumer import KafkaReader
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import examples_topic
from headrace.learner.errors import RecoveryRefused, WrongExamples
from headrace.learner.spec.compatibility import check_compatible, check_copy
from headrace.learner.spec.model_spec import ModelSpec, load_spec, parse_spec
from headrace.learner.spec.warm_start import KeptRows, StartOffsets, check_larger, first_after
from headrace.pserver.errors import MissingModel
from headrace.pserver.snapshots.catalog import find_snapshot
from headrace.pserver.snapshots.manifest import Manifest
from headrace.pserver.snapshots.restoration import (
    RestoreResult,
    ShapeChange,
    check_buckets,
    fill_with_nothing,
    restore,
    whole_shape,
)
from headrace.pserver.snapshots.snapshot_errors import DamagedSnapshot
from headrace.pserver.snapshots.verification import verify
from headrace.pserver.snapshots.writer import SnapshotProgress
from headrace.pserver.store import Shape, Store

if TYPE_CHECKING:
    from headrace.pserver.snapshots.storage import SnapshotStorage


@dataclass(frozen=True, slots=True)
class RestoreSettings:
    """The snapshot, and the model it becomes."""

    name: str | None = None
    """Name of the snapshot; None for the newest of the model."""
    copy: Path | None = None
    """Spec of the model to restore as; None for the same model."""
    warm: bool = False
    """Whether `copy` has more fields or statistics, and examples of its own."""
    buckets: int | None = None
    """None: as many as the store's model has, or the snapshot if the store has no model."""
    trusting: bool = False
    """Skip the verification."""


class RestorePlan(NamedTuple):
    """A snapshot, and the spec it is restored as."""

    manifest: Manifest
    spec: ModelSpec
    warm: KeptRows | None = None
    """The rows that a larger model keeps; None for the same model, perhaps renamed."""

    @property
    def moment_ms(self) -> int:
        """Greatest append time of what it has learned, as far as it knows; else when it began."""
        manifest = self.manifest
        known = max(each.append_ms for each in manifest.files)
        return known or manifest.as_of_ms or manifest.begun_ms


def choose(storage: SnapshotStorage, spec: ModelSpec, settings: RestoreSettings) -> RestorePlan:
    """Return the chosen snapshot. `spec`: of the model it was taken from.

    Raises NoSnapshot, DamagedSnapshot, WrongModel naming what differs, SpecError, RecoveryRefused.
    """
    manifest = find_snapshot(storage, spec.name, settings.name)
    check_compatible(spec, manifest.shape)
    if settings.copy is None:
        return RestorePlan(manifest, spec)
    copy = load_spec(settings.copy)
    if copy.name == spec.name:
        raise RecoveryRefused(f'--as: expected a spec of another name than "{spec.name}"')
    where = f"snapshot {manifest.name}"
    original = parse_spec(manifest.spec, where)
    if settings.warm:
        return RestorePlan(manifest, copy, check_larger(copy, original, where))
    check_copy(copy, original, where)
    return RestorePlan(manifest, copy)


def examples_after(
    kafka: KafkaSettings, wanted: RestorePlan
) -> tuple[StartOffsets, dict[str, int]]:
    """Return where in its own examples a larger model goes on from a snapshot, and as marks.

    Raises StreamError's kinds, WrongExamples.
    """
    spec = wanted.spec
    topic = examples_topic(spec.name)
    try:
        beginning = first_after(read_all(kafka, topic), spec.fields, wanted.moment_ms)
    except UnreadableExamples as error:
        raise WrongExamples(topic, error) from error
    with closing(KafkaReader(kafka, None, [topic])) as reader:
        identity = reader.topic_id(topic)
    return beginning, {f"{identity}/{s.partition}": n for s, n in beginning.offsets.items()}


def restore_model(
    store: Store,
    storage: SnapshotStorage,
    wanted: RestorePlan,
    settings: RestoreSettings,
    *,
    marks: Mapping[str, int] | None = None,
    stop: threading.Event,
    tell_verified: Callable[[SnapshotProgress], None],
    tell_restored: Callable[[SnapshotProgress], None],
) -> RestoreResult | None:
    """Verify, then fill what is missing; None if `stop` was set before anything was written.

    `store` is of the model `wanted.spec`. marks: of a larger model, which else begins where its
    examples begin. Raises what an operator has to read, StoreError's kinds.
    """
    manifest, spec, kept = wanted
    there = whole_shape(store)
    if there is not None:
        check_compatible(spec, there)
        shape = there
    elif spec.name == manifest.model:
        shape = manifest.shape
    else:
        shape = replace(
            manifest.shape, model=spec.name, fingerprint=spec.fingerprint, spec=spec.text
        )
    check_buckets(manifest.buckets, settings.buckets or shape.buckets)
    if settings.buckets is not None:
        shape = replace(shape, buckets=settings.buckets)
    if not settings.trusting:
        problems = verify(storage, manifest, stop=stop, tell=tell_verified)
        if problems:
            raise DamagedSnapshot(manifest.name, problems)
    if stop.is_set():
        return None
    return restore(
        store,
        storage,
        manifest,
        shape,
        trusting=settings.trusting,
        change=None if kept is None else ShapeChange(kept.rows, marks or {}),
        stop=stop,
        tell=tell_restored,
    )


def restore_empty(store: Store, spec: ModelSpec, buckets: int | None) -> list[int]:
    """Fill the missing buckets with nothing; return them.

    buckets: as the model was made, where the store has lost that too. Raises RecoveryRefused if
    that would have to be said, WrongModel, ModelExists, StoreError's kinds.
    """
    there = whole_shape(store)
    if there is not None:
        check_compatible(spec, there)
    shape = None
    if buckets is not None:
        shape = there or Shape(spec.name, buckets, spec.width, spec.fingerprint, spec.text)
        shape = replace(shape, buckets=buckets)
    try:
        return fill_with_nothing(store, shape)
    except MissingModel as error:
        raise RecoveryRefused(
            f'--empty: the store has lost the number of buckets of "{spec.name}", and there '
            "is no snapshot: expected --buckets, with the number that the model was created with"
        ) from error
