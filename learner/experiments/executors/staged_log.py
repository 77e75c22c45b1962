"""A log decoded once and cut into chunks, for tasks that learn a chunk each.

    FOLDER/chunk-00000012.pickle    blocks of examples, their shares of the log, and the next place

A chunk ends with the first block that reaches the next rung, where weak arms stop, or has
`MOST_EXAMPLES`. It is written beside the others, synced and renamed. The last chunk says so, and
the log then ends. Positions are `FilePosition`s: a chunk, and a block of it.

A source that cannot seek (`EventLogSource`) joins its log from the begin after every restart of the
runner, up to the first chunk that is missing. Tasks only read chunks.
"""

import os
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from headrace.ingest.examples.batch import Examples
from headrace.learner.batch.sources import ExampleBlock, ExampleLog, FilePosition
from headrace.learner.experiments.experiment_file import RungSection, rung_examples

T = TypeVar("T")

MOST_EXAMPLES = 200_000
"""Largest chunk; its last block may exceed it. An eliminated arm learned its chunk in vain."""


class StagedChunk(NamedTuple):
    """Blocks of a log."""

    blocks: list[tuple[Examples, float]]
    """Examples, and the share of the log behind them."""
    next_place: Any
    """Position of the source behind the chunk."""
    last: bool
    total: int
    """Examples of the log to the end of the chunk."""


def chunk_sizes(rungs: RungSection) -> Callable[[int], int]:
    """Return a function: examples before a chunk -> examples of the chunk."""

    def size(before: int) -> int:
        rung = 0
        while rung_examples(rungs, rung) <= before:
            rung += 1
        return min(rung_examples(rungs, rung) - before, MOST_EXAMPLES)

    return size


class StagedLog:
    """A log whose chunks are files. One thread at a time stages them."""

    def __init__(self, source: ExampleLog, folder: Path, sizes: Callable[[int], int]) -> None:
        """`sizes`: examples before a chunk -> fewest examples of the chunk, see `chunk_sizes`."""
        folder.mkdir(parents=True, exist_ok=True)
        self._source, self._folder, self._sizes = source, folder, sizes
        self._reading: Iterator[ExampleBlock] | None = None
        self._reading_chunk = -1
        """The chunk whose blocks come next."""

    @property
    def identity(self) -> str:
        """Identity of the source, whose positions are other ones."""
        return f"{self._source.identity} in chunks"

    def path_of(self, chunk: int) -> Path:
        """Return the path of a chunk, which may be missing."""
        return self._folder / f"chunk-{chunk:08}.pickle"

    def blocks(self, after: FilePosition) -> Iterator[ExampleBlock]:
        """Yield the blocks behind a position."""
        number, begin = after
        while True:
            self.stage(number)
            chunk = read_chunk(self.path_of(number))
            for block, (examples, read) in enumerate(chunk.blocks[begin:], begin + 1):
                ended = block == len(chunk.blocks) and not chunk.last
                place = FilePosition(number + 1, 0) if ended else FilePosition(number, block)
                yield ExampleBlock(examples, place, read)
            if chunk.last:
                return
            number, begin = number + 1, 0

    def has(self, chunk: int, block: int) -> bool:
        """Whether the log has a block behind this position."""
        return self.stage(chunk) and block < len(read_chunk(self.path_of(chunk)).blocks)

    def stage(self, chunk: int) -> bool:
        """Write the chunk if it is missing; return False behind the end of the log."""
        if self.path_of(chunk).exists():
            return True
        place: Any = FilePosition()
        total = 0
        if chunk:
            if not self.stage(chunk - 1):
                return False
            before = read_chunk(self.path_of(chunk - 1))
            if before.last:
                return False
            place, total = before.next_place, before.total
        if self._reading is None or self._reading_chunk != chunk:
            self._reading = iter(self._source.blocks(place))
        blocks: list[tuple[Examples, float]] = []
        most, count, last = self._sizes(total), 0, True
        for block in self._reading:
            blocks.append((block.examples, block.read))
            count, place = count + len(block.examples), block.after
            if count >= most:
                last = False
                break
        self._reading_chunk = chunk + 1
        staged = StagedChunk(blocks, place, last, total + count)
        write_durably(self.path_of(chunk), [tuple(staged)])
        return True

    def staged_meanwhile(self, chunk: int, work: Callable[[], T]) -> T:
        """Return what `work` returns, and write the chunk in a thread meanwhile."""
        with ThreadPoolExecutor(1) as executor:
            staged = executor.submit(self.stage, chunk)
            answer = work()
            staged.result()
        return answer


def read_chunk(path: Path) -> StagedChunk:
    """Return a chunk that is staged."""
    return StagedChunk(*pickle.loads(path.read_bytes()))  # noqa: S301 - written below


def write_durably(path: Path, values: list[object]) -> None:
    """Write pickles one after another; the file appears whole or not at all."""
    aside = path.with_suffix(f".new-{os.getpid()}")
    with aside.open("wb") as file:
        for value in values:
            pickle.dump(value, file, pickle.HIGHEST_PROTOCOL)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)
