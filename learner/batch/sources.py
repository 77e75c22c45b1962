"""The sources of a fit: blocks of examples in a fixed order, with positions.

A source yields the same blocks each time it is read. A fit that was killed therefore continues
after the last position that it saved, and learns every example exactly once per epoch.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from headrace.ingest.examples.batch import Examples
from headrace.ingest.examples.splitting import part_of
from headrace.ingest.survey.event_tallies import RefusalTally
from headrace.ingest.survey.findings import RefusedEvents
from headrace.learner.errors import LearnerError
from headrace.learner.spec.model_spec import ModelSpec
from headrace.runtime.counted_nouns import counted


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
    after: Any
    """The position behind this block; of files a `FilePosition`."""
    read: float = 0.0
    """Share of the source before `after`, 0 to 1; 0 if the source has no end."""
    refusals: tuple[RefusedEvents, ...] = ()
    """Lines of this block that are left out."""
    begun: float = 1.0
    """Share of the source before this block; 1: unknown, so the block cannot be split."""
    times: npt.NDArray[np.int64] | None = None
    """Times of the examples in the order of the file; None if the source has no order of time."""


class UnfinishedFit(Struct, frozen=True):
    """A fit that was killed."""

    fingerprint: str
    """Of the spec."""
    source: str
    """The identity of the source."""


def check_same_fit(path: str, found: UnfinishedFit, spec: ModelSpec, source: str) -> None:
    """Check that an unfinished fit is of this spec and data. Raises UnreadableData."""
    for what, same in (
        ("spec", found.fingerprint == spec.fingerprint),
        ("data", found.source == source),
    ):
        if not same:
            raise UnreadableData(
                f"{path}: expected the unfinished fit of this {what}, got one of another "
                f"{what}. Give --to another folder, or start again with --restart"
            )


def split_at(border: float, blocks: Iterable[ExampleBlock]) -> Iterator[ExampleBlock]:
    """Yield the blocks, the one across the border (a share of the source) in two parts.

    Both have the position of the whole, so the parts must be learned at different times.
    """
    for block in blocks:
        if not block.begun < border < block.read:
            yield block
            continue
        share = (border - block.begun) / (block.read - block.begun)
        examples, first = block.examples, round(share * len(block.examples))
        times = (None, None) if block.times is None else (block.times[:first], block.times[first:])
        yield block._replace(examples=part_of(examples, 0, first), read=border, times=times[0])
        rest = part_of(examples, first, len(examples))
        yield block._replace(examples=rest, begun=border, refusals=(), times=times[1])


def merged_refusals(
    before: tuple[RefusedEvents, ...], more: tuple[RefusedEvents, ...]
) -> tuple[RefusedEvents, ...]:
    """Return the refusals of two consecutive parts by reason, the most frequent first."""
    if not more:
        return before
    tally = RefusalTally()
    for each in (*before, *more):
        tally.add(each)
    return tally.result()


def mostly_refused(refusals: Sequence[RefusedEvents], learned: int) -> UnreadableData | None:
    """Return the error of data with more refused than learned lines, or without lines; or None."""
    refused = sum(each.count for each in refusals)
    if not refused and not learned:
        return UnreadableData(
            "expected data with at least one row, got none; no model was written. Check that the "
            "files are complete"
        )
    if refused <= learned:
        return None
    reasons = "\n".join(
        f"{counted(each.count, 'row is', 'rows are')} refused: {each.details}" for each in refusals
    )
    return UnreadableData(
        f"{reasons}\nexpected data of which at most half is refused, got {refused:,} of "
        f"{counted(refused + learned, 'row')}; no model was written. Correct the data or its layout"
    )


class ExampleLog(Protocol):
    """Files or a topic, read in the same order each time."""

    @property
    def identity(self) -> str:
        """Text that names the log; it changes when a file is added, removed or has another size."""

    def blocks(self, after: Any) -> Iterator[ExampleBlock]:
        """Yield the blocks behind a position; `FilePosition()` is the begin of any log.

        Blocks are empty while a log without an end has nothing new. Raises UnreadableData.
        """


class BatchSource(ExampleLog, Protocol):
    """Examples in files. A subclass without offsets, or with exact shares, has no more to say."""

    @property
    def marks(self) -> Mapping[str, int]:
        """Topic id/partition -> the first offset not in the source; empty if it has no offsets.

        The snapshot stores them, so that a learner continues from there.
        """
        return {}

    def count(self) -> None:
        """Count the rows of all files, which makes `ExampleBlock.read` an exact share of rows.

        Without a count, it is a share of bytes, some megabytes ahead because files are buffered.
        """
        return
