"""Removing old snapshots, and what killed writers left. Never the newest complete one of a model.

A snapshot goes if it is beyond the newest so many *and* older than so many days, where both are
asked for. Damaged ones do not count: so many complete ones stay, and what is newer than the last of
those, since what is wrong with it may yet be mended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pserver.snapshots.listing import list_snapshots

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pserver.snapshots.listing import Listed
    from pserver.snapshots.shelf import Leftover, Shelf

ABANDONED_AFTER_MS = 24 * 3_600_000
"""Nothing was written for so long: whoever wrote it is dead."""


class Prunings(NamedTuple):
    """What goes."""

    snapshots: list[Listed]
    leftovers: list[Leftover]


def superfluous(
    listed: Sequence[Listed], *, keep: int | None, older_than_ms: int | None, now_ms: int
) -> list[Listed]:
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


def prunable(shelf: Shelf, *, keep: int | None, older_than_ms: int | None, now_ms: int) -> Prunings:
    """Return what `prune` would remove. Raises StorageFailed."""
    leftovers = [
        each
        for each in shelf.half_written()
        if each.changed_ms is not None and now_ms - each.changed_ms > ABANDONED_AFTER_MS
    ]
    listed = list_snapshots(shelf)
    goes = superfluous(listed, keep=keep, older_than_ms=older_than_ms, now_ms=now_ms)
    return Prunings(goes, leftovers)


def prune(shelf: Shelf, prunings: Prunings) -> None:
    """Remove what `prunable` named. Raises StorageFailed."""
    for each in prunings.snapshots:
        shelf.remove(each.name)
    for leftover in prunings.leftovers:
        shelf.clear(leftover)
