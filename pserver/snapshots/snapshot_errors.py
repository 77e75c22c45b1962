"""Errors of snapshots, all of them for operators to read."""

from collections.abc import Sequence

from headrace.pserver.errors import StoreError


class SnapshotError(StoreError):
    """Any failure of a snapshot. The message says expected, got, and where."""


class StorageFailed(SnapshotError):
    """An operation of the folder or object storage failed. No unfinished result is visible."""


class NoSnapshot(SnapshotError):
    """There is no snapshot of that model, or of that name."""


class DamagedSnapshot(SnapshotError):
    """A snapshot differs from what was written. `problems` has a line for each file."""

    def __init__(self, name: str, problems: Sequence[str]) -> None:
        shown = "\n".join(f"  {problem}" for problem in problems)
        super().__init__(
            f"snapshot {name} is damaged, and was not used:\n{shown}\n"
            "Choose another one with --snapshot."
        )
        self.problems = tuple(problems)


class DoesNotFit(SnapshotError):
    """The snapshot cannot become the requested model."""
