"""Lists the snapshots of a storage, finds one, and prunes old ones.

Listing reads no rows: it checks the manifest, and that its files exist with the right sizes.
`verification` checks their bytes.

Pruning removes old snapshots and the leftovers of killed writers, but never the newest complete
snapshot of a model. With both limits given, a snapshot is removed if it is beyond the newest `keep`
*and* older than `older_than_ms`. Damaged snapshots do not count towards `keep`. They stay while
they are newer than the last snapshot that is kept, because they may yet be repaired.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from headrace.pserver.snapshots import manifest as manifests
from headrace.pserver.snapshots.manifest import BadManifest, Manifest
from headrace.pserver.snapshots.snapshot_errors import DamagedSnapshot, NoSnapshot

if TYPE_CHECKING:
    from headrace.pserver.snapshots.storage import Leftover, SnapshotStorage


class ListedSnapshot(NamedTuple):
    """A snapshot, judged without reading its rows."""

    name: str
    model: str
    manifest: Manifest | None
    """None if it cannot be read; see `problems`."""
    problems: tuple[str, ...]
    """A line for each file that is missing or of another size than written."""

    @property
    def complete(self) -> bool:
        """Whether no problem is known."""
        return self.manifest is not None and not self.problems


def list_snapshots(storage: SnapshotStorage) -> list[ListedSnapshot]:
    """Return all snapshots, the oldest first; damaged ones too. Raises StorageFailed."""
    found = (_listed(storage, name) for name in storage.names())
    return [each for each in found if each is not None]


def newest_begun_ms(storage: SnapshotStorage, model: str) -> int:
    """Return when the newest complete snapshot of a model was begun, 0 without one.

    Reads no more manifests than it must. Raises StorageFailed.
    """
    for name in reversed(list(storage.names())):
        if manifests.model_of(name) == model:
            found = _listed(storage, name)
            if found is not None and found.manifest is not None and found.complete:
                return found.manifest.begun_ms
    return 0


def find_snapshot(storage: SnapshotStorage, model: str, name: str | None) -> Manifest:
    """Return the newest snapshot of a model, or the one of that name.

    Raises NoSnapshot, or DamagedSnapshot: an older one never silently replaces a damaged one.
    """
    if name is None:
        found = [each for each in list_snapshots(storage) if each.model == model]
    else:
        one = _listed(storage, name) if manifests.model_of(name) else None
        found = [] if one is None else [one]
    if not found:
        expected = f"of {model!r}" if name is None else name
        raise NoSnapshot(f"expected a snapshot {expected} in {storage.url}, got none")
    newest = found[-1]
    if newest.manifest is None or newest.problems:
        raise DamagedSnapshot(newest.name, newest.problems)
    return newest.manifest


def missing_files(manifest: Manifest, sizes: dict[str, int]) -> list[str]:
    """Return a line for each file that is missing or of another size."""
    problems = []
    for each in manifest.files:
        if each.file not in sizes:
            problems.append(f"{each.file}: missing")
        elif sizes[each.file] != each.size_bytes:
            found = sizes[each.file]
            problems.append(f"{each.file}: expected {each.size_bytes} bytes, got {found}")
    return problems


def _listed(storage: SnapshotStorage, name: str) -> ListedSnapshot | None:
    """Return the snapshot of this name; None without a manifest, as it is then not a snapshot."""
    blob = storage.read(name, manifests.FILE)
    if blob is None:
        return None
    model = manifests.model_of(name) or ""
    try:
        manifest = manifests.decode(blob)
    except BadManifest as error:
        return ListedSnapshot(name, model, None, (f"{manifests.FILE}: {error}",))
    if manifest.name != name:
        text = f"{manifests.FILE}: expected that of {name}, got that of {manifest.name}"
        return ListedSnapshot(name, model, None, (text,))
    return ListedSnapshot(
        name, manifest.model, manifest, tuple(missing_files(manifest, storage.sizes(name)))
    )


ABANDONED_AFTER_MS = 24 * 3_600_000
"""Time without a write after which the writer of a snapshot is considered dead."""


class Prunings(NamedTuple):
    """The snapshots and leftovers to remove."""

    snapshots: list[ListedSnapshot]
    leftovers: list[Leftover]


def superfluous(
    listed: Sequence[ListedSnapshot], *, keep: int | None, older_than_ms: int | None, now_ms: int
) -> list[ListedSnapshot]:
    """Return the snapshots to remove, the oldest first; `listed` is in the order of time.

    keep: complete snapshots of each model that always stay; None: the newest alone. older_than_ms:
    least age of a removed snapshot, since it was written; None: any age.
    """
    goes = []
    kept: dict[str, int] = {}
    for each in reversed(listed):
        stays = kept.get(each.model, 0) < max(keep or 0, 1)
        if each.complete:
            kept[each.model] = kept.get(each.model, 0) + 1
        # without a readable manifest the age is unknown: only the position decides
        age_ms = now_ms - each.manifest.ended_ms if each.manifest else None
        old = older_than_ms is None or (age_ms is not None and age_ms > older_than_ms)
        if old and not stays:
            goes.append(each)
    return goes[::-1]


def prunable(
    storage: SnapshotStorage, *, keep: int | None, older_than_ms: int | None, now_ms: int
) -> Prunings:
    """Return what `prune` would remove. Raises StorageFailed."""
    leftovers = [
        each
        for each in storage.half_written()
        if each.changed_ms is not None and now_ms - each.changed_ms > ABANDONED_AFTER_MS
    ]
    listed = list_snapshots(storage)
    goes = superfluous(listed, keep=keep, older_than_ms=older_than_ms, now_ms=now_ms)
    return Prunings(goes, leftovers)


def prune(storage: SnapshotStorage, prunings: Prunings) -> None:
    """Remove the result of `prunable`. Raises StorageFailed."""
    for each in prunings.snapshots:
        storage.remove(each.name)
    for leftover in prunings.leftovers:
        storage.clear(leftover)
