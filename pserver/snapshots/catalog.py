"""Which snapshots there are, and which of them is meant.

What can be seen without reading rows: the manifest, and whether its files are there, each of its
size. Whether their bytes are right says `verifying`.

Removing old snapshots, and what killed writers left. Never the newest complete one of a model.

A snapshot goes if it is beyond the newest so many *and* older than so many days, where both are
asked for. Damaged ones do not count: so many complete ones stay, and what is newer than the last of
those, since what is wrong with it may yet be mended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.pserver.snapshots import manifest as manifests
from headrace.pserver.snapshots.manifest import BadManifest
from headrace.pserver.snapshots.snapshot_errors import DamagedSnapshot, NoSnapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.pserver.snapshots.manifest import Manifest
    from headrace.pserver.snapshots.storage import Leftover, SnapshotStorage


class ListedSnapshot(NamedTuple):
    """A snapshot as it is seen from outside."""

    name: str
    model: str
    manifest: Manifest | None
    """None: it cannot be read; `problems` says why."""
    problems: tuple[str, ...]
    """A line for each file that is not there or not as large as it was written."""

    @property
    def complete(self) -> bool:
        """Whether nothing is known to be wrong with it."""
        return self.manifest is not None and not self.problems


def list_snapshots(shelf: SnapshotStorage) -> list[ListedSnapshot]:
    """Return all snapshots, the oldest first; damaged ones too. Raises StorageFailed."""
    found = (_listed(shelf, name) for name in shelf.names())
    return [each for each in found if each is not None]


def find_snapshot(shelf: SnapshotStorage, model: str, name: str | None) -> Manifest:
    """Return the newest snapshot of a model, or the one of that name.

    Raises NoSnapshot, and DamagedSnapshot: an older one is never taken instead in silence.
    """
    if name is None:
        found = [each for each in list_snapshots(shelf) if each.model == model]
    else:
        one = _listed(shelf, name) if manifests.model_of(name) else None
        found = [] if one is None else [one]
    if not found:
        expected = f"of {model!r}" if name is None else name
        raise NoSnapshot(f"expected a snapshot {expected} in {shelf.url}, found none")
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
            problems.append(f"{each.file}: expected {each.size_bytes} bytes, found {found}")
    return problems


def _listed(shelf: SnapshotStorage, name: str) -> ListedSnapshot | None:
    """Return None for what has no manifest: it is no snapshot."""
    blob = shelf.read(name, manifests.FILE)
    if blob is None:
        return None
    model = manifests.model_of(name) or ""
    try:
        manifest = manifests.decode(blob)
    except BadManifest as error:
        return ListedSnapshot(name, model, None, (f"{manifests.FILE}: {error}",))
    if manifest.name != name:
        text = f"{manifests.FILE}: expected that of {name}, found that of {manifest.name}"
        return ListedSnapshot(name, model, None, (text,))
    return ListedSnapshot(
        name, manifest.model, manifest, tuple(missing_files(manifest, shelf.sizes(name)))
    )


ABANDONED_AFTER_MS = 24 * 3_600_000
"""Nothing was written for so long: whoever wrote it is dead."""


class Prunings(NamedTuple):
    """What goes."""

    snapshots: list[ListedSnapshot]
    leftovers: list[Leftover]


def superfluous(
    listed: Sequence[ListedSnapshot], *, keep: int | None, older_than_ms: int | None, now_ms: int
) -> list[ListedSnapshot]:
    """Return the snapshots that go, the oldest first; `listed` in the order of time.

    keep: how many complete ones of each model stay in any case; None: the newest alone.
    older_than_ms: how old, since it was written, a snapshot has to be to go; None: any age.
    """
    goes = []
    kept: dict[str, int] = {}
    for each in reversed(listed):
        stays = kept.get(each.model, 0) < max(keep or 0, 1)
        if each.complete:
            kept[each.model] = kept.get(each.model, 0) + 1
        # how old one is whose manifest cannot be read, nobody knows: only its place can condemn it
        age_ms = now_ms - each.manifest.ended_ms if each.manifest else None
        old = older_than_ms is None or (age_ms is not None and age_ms > older_than_ms)
        if old and not stays:
            goes.append(each)
    return goes[::-1]


def prunable(
    shelf: SnapshotStorage, *, keep: int | None, older_than_ms: int | None, now_ms: int
) -> Prunings:
    """Return what `prune` would remove. Raises StorageFailed."""
    leftovers = [
        each
        for each in shelf.half_written()
        if each.changed_ms is not None and now_ms - each.changed_ms > ABANDONED_AFTER_MS
    ]
    listed = list_snapshots(shelf)
    goes = superfluous(listed, keep=keep, older_than_ms=older_than_ms, now_ms=now_ms)
    return Prunings(goes, leftovers)


def prune(shelf: SnapshotStorage, prunings: Prunings) -> None:
    """Remove what `prunable` named. Raises StorageFailed."""
    for each in prunings.snapshots:
        shelf.remove(each.name)
    for leftover in prunings.leftovers:
        shelf.clear(leftover)
