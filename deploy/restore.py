"""Putting a snapshot into a store: which one, as what, and whether it fits.

What is missing decides what is done. A store that lost buckets gets just those; an empty one gets
the whole model; and where even the model's shape was lost with its shard, the snapshot knows it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from deploy.errors import BadOption
from learner.agreement import check_agreement, check_copy
from learner.spec import load_spec, parse_spec
from pserver.errors import MissingModel
from pserver.snapshots.errors import DamagedSnapshot
from pserver.snapshots.listing import find_snapshot
from pserver.snapshots.restoring import check_buckets, fill_with_nothing, restore, whole_shape
from pserver.snapshots.verifying import verify
from pserver.store import Shape

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from pathlib import Path

    from learner.spec import ModelSpec
    from pserver.snapshots.manifest import Manifest
    from pserver.snapshots.restoring import Restored
    from pserver.snapshots.shelf import Shelf
    from pserver.snapshots.writing import Progress
    from pserver.store import Store


@dataclass(frozen=True, slots=True)
class RestoreSettings:
    """Which snapshot, and what it is to become."""

    name: str | None = None
    """Of the snapshot; None: the newest of the model."""
    copy: Path | None = None
    """Spec of the model to restore as; None: the same model."""
    buckets: int | None = None
    """None: as many as the store's model has, or the snapshot where there is none."""
    trusting: bool = False
    """Whether nothing is verified."""


class Wanted(NamedTuple):
    """A snapshot, and the spec that it is to be restored as."""

    manifest: Manifest
    spec: ModelSpec


def choose(shelf: Shelf, spec: ModelSpec, settings: RestoreSettings) -> Wanted:
    """Return the snapshot that is meant. `spec`: of the model it was taken from.

    Raises NoSnapshot, DamagedSnapshot, WrongModel naming what differs, SpecError, BadOption.
    """
    manifest = find_snapshot(shelf, spec.name, settings.name)
    check_agreement(spec, manifest.shape)
    if settings.copy is None:
        return Wanted(manifest, spec)
    copy = load_spec(settings.copy)
    if copy.name == spec.name:
        raise BadOption(f'--as: expected a spec of another name than "{spec.name}"')
    where = f"snapshot {manifest.name}"
    check_copy(copy, parse_spec(manifest.spec, where), where)
    return Wanted(manifest, copy)


def restore_model(
    store: Store,
    shelf: Shelf,
    wanted: Wanted,
    settings: RestoreSettings,
    *,
    stop: threading.Event,
    tell_verified: Callable[[Progress], None],
    tell_restored: Callable[[Progress], None],
) -> Restored | None:
    """Verify, then fill what is missing; None if told to stop before anything was written.

    `store` is of the model `wanted.spec`. Raises what an operator has to read, StoreError's kinds.
    """
    manifest, spec = wanted
    there = whole_shape(store)
    if there is not None:
        check_agreement(spec, there)
        shape = there
    elif spec.name == manifest.model:
        shape = manifest.shape
    else:
        shape = replace(
            manifest.shape, model=spec.name, fingerprint=spec.fingerprint, spec=spec.text
        )
    if settings.buckets is not None:
        shape = replace(shape, buckets=settings.buckets)
    check_buckets(manifest.buckets, shape.buckets)
    if not settings.trusting:
        problems = verify(shelf, manifest, stop=stop, tell=tell_verified)
        if problems:
            raise DamagedSnapshot(manifest.name, problems)
    if stop.is_set():
        return None
    return restore(
        store,
        shelf,
        manifest,
        shape,
        trusting=settings.trusting,
        stop=stop,
        tell=tell_restored,
    )


def restore_empty(store: Store, spec: ModelSpec, buckets: int | None) -> list[int]:
    """Fill the missing buckets with nothing; return them.

    buckets: as the model was made, where the store has lost that too. Raises BadOption if that
    would have to be said, WrongModel, ModelExists, StoreError's kinds.
    """
    there = whole_shape(store)
    if there is not None:
        check_agreement(spec, there)
    shape = None
    if buckets is not None:
        shape = there or Shape(spec.name, buckets, spec.width, spec.fingerprint, spec.text)
        shape = replace(shape, buckets=buckets)
    try:
        return fill_with_nothing(store, shape)
    except MissingModel as error:
        raise BadOption(
            f'--empty: the store has lost how many buckets "{spec.name}" had, and without a '
            "snapshot nobody else knows: expected --buckets, with the number it was made with"
        ) from error
