"""What can go wrong with snapshots, all of it for an operator to read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.pserver.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence


class SnapshotError(StoreError):
    """Any failure of a snapshot. The message says what was expected and found, where."""


class StorageFailed(SnapshotError):
    """The folder or object storage did not do what was asked. Nothing half-done is visible."""


class NoSnapshot(SnapshotError):
    """There is no snapshot of that model, or none of that name."""


class DamagedSnapshot(SnapshotError):
    """A snapshot is not what was written. `problems` has a line for each file."""

    def __init__(self, name: str, problems: Sequence[str]) -> None:
        shown = "\n".join(f"  {problem}" for problem in problems)
        super().__init__(
            f"snapshot {name} is damaged, and nothing of it was used:\n{shown}\n"
            "Choose another one with --snapshot."
        )
        self.problems = tuple(problems)


class DoesNotFit(SnapshotError):
    """The snapshot cannot become the model that was asked for."""
