"""The interface of what a fit learns: blocks of examples in a fixed order, with positions.

A source gives the same blocks at every reading, so a fit that was killed goes on after the last
position that it saved, and learns no example twice and none not at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.learner.errors import LearnerError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.ingest.examples import Examples


class UnreadableData(LearnerError):
    """The data of a fit is missing, or is not what its layout or spec says."""


class FilePosition(NamedTuple):
    """A place between two blocks."""

    file: int = 0
    """Number of the file, from 0, in the order of the source."""
    block: int = 0
    """Blocks of that file before the place."""


class ExampleBlock(NamedTuple):
    """Some examples."""

    examples: Examples
    after: FilePosition
    """The place behind this block."""
    read: float
    """Share of the source before `after`, 0 to 1."""


class BatchSource(Protocol):
    """Examples in files."""

    @property
    def identity(self) -> str:
        """Text that changes when a file is added, removed or has another size."""

    @property
    def marks(self) -> Mapping[str, int]:
        """Topic id/partition -> the first offset not in the source; empty if it has no offsets.

        A snapshot carries it, so that a learner goes on from there.
        """

    def count(self) -> None:
        """Count the rows of all files, so that `read` is a share of rows and exact.

        Without it, `read` is a share of bytes, and readers are some megabytes ahead of rows.
        """

    def blocks(self, after: FilePosition) -> Iterator[ExampleBlock]:
        """Yield the blocks behind a place. Raises UnreadableData."""
