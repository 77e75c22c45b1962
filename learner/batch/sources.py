"""The sources of a fit: blocks of examples in a fixed order, with positions.

A source yields the same blocks each time it is read. A fit that was killed therefore continues
after the last position that it saved, and learns every example exactly once per epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from headrace.learner.errors import LearnerError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.ingest.examples import Examples


class UnreadableData(LearnerError):
    """The data of a fit is missing, or does not match its layout or spec."""


class FilePosition(NamedTuple):
    """A position between two blocks."""

    file: int = 0
    """Number of the file, from 0."""
    block: int = 0
    """Blocks of that file before the position."""


class ExampleBlock(NamedTuple):
    """Some examples."""

    examples: Examples
    after: FilePosition
    """The position behind this block."""
    read: float
    """Share of the source before `after`, 0 to 1."""


class LogBlock(Protocol):
    """Some examples of a log. They are empty if the log has no end and nothing new."""

    @property
    def examples(self) -> Examples:
        """The examples."""

    @property
    def after(self) -> object:
        """The position behind them; it can be compared and pickled."""

    @property
    def read(self) -> float:
        """Share of the log before `after`, 0 to 1; 0 if the log has no end."""


class ExampleLog(Protocol):
    """Files or a topic, read in the same order each time."""

    @property
    def identity(self) -> str:
        """Text that names the log."""

    def blocks(self, after: Any) -> Iterator[LogBlock]:
        """Yield the blocks behind a position; `FilePosition()` is the begin of any log."""


class BatchSource(Protocol):
    """Examples in files."""

    @property
    def identity(self) -> str:
        """Text that changes when a file is added, removed or has another size."""

    @property
    def refused(self) -> int:
        """Rows left out so far, because they are malformed or have no readable time."""

    @property
    def marks(self) -> Mapping[str, int]:
        """Topic id/partition -> the first offset not in the source; empty if it has no offsets.

        The snapshot stores them, so that a learner continues from there.
        """

    def count(self) -> None:
        """Count the rows of all files, which makes `ExampleBlock.read` an exact share of rows.

        Without a count, it is a share of bytes, some megabytes ahead because files are buffered.
        """

    def blocks(self, after: FilePosition) -> Iterator[ExampleBlock]:
        """Yield the blocks behind a position. Raises UnreadableData."""
