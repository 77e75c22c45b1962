"""The work of one task of a shared search: an arm learns chunks, and its losses are summed.

Machines share sums of losses, not scores: some numbers for each block, which fit into a database.
They are the sums that the serial runner adds up, in its order, so they are equal bit for bit.
"""

from __future__ import annotations

import pickle
import zlib
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from headrace.ingest.examples import Kind
from headrace.learner.experiments.arm import FieldSelection
from headrace.learner.experiments.executors.staged_log import read_chunk, write_durably
from headrace.learner.experiments.losses import OutcomeJoin, loss_sums
from headrace.learner.local import InMemoryModel

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt

    from headrace.ingest.examples import Examples
    from headrace.ingest.features import FieldSet
    from headrace.learner.experiments.executors.staged_log import StagedChunk
    from headrace.learner.experiments.losses import Settled
    from headrace.learner.spec import ModelSpec

    Reals = npt.NDArray[np.float64]


class ChunkSums(NamedTuple):
    """The losses of one arm in one chunk."""

    checksum: int
    """Of the examples: all machines learn the same ones."""
    blocks: list[Reals]
    """For each block, the sums of all outcomes that became final with it; one more entry at the end
    of the log."""


class _Learned:
    """An arm behind a chunk."""

    def __init__(self, model: InMemoryModel, outcomes: OutcomeJoin, waiting: deque[Reals]) -> None:
        self.model, self.outcomes, self.waiting = model, outcomes, waiting


@dataclass(frozen=True)
class SharedTask:
    """One arm and the chunks that it lacks. It is pickled."""

    spec: ModelSpec
    given: FieldSet
    """The fields of the staged examples."""
    window_ms: int
    batch_ms: int
    chunks: tuple[Path, ...]
    """Staged, in their order. A machine that takes an arm over learns all chunks so far."""
    before: Path | None
    """Checkpoint to begin with; None: a new model."""
    after: Path
    """Checkpoint to write."""

    def run(self) -> ChunkSums:
        """Learn the chunks; return the losses in the last one. Complete work is not repeated."""
        if self.after.exists():
            with self.after.open("rb") as file:
                return ChunkSums(*pickle.load(file))  # noqa: S301 - written below
        learned = self._begin()
        select = FieldSelection(self.given, self.spec.fields)
        for path in self.chunks:
            sums = _learn(learned, read_chunk(path), select)
        self.after.parent.mkdir(parents=True, exist_ok=True)
        state = learned.outcomes, learned.waiting
        write_durably(self.after, [tuple(sums), learned.model, state])
        return sums

    def _begin(self) -> _Learned:
        if self.before is None:
            outcomes = OutcomeJoin(self.window_ms, self.batch_ms)
            return _Learned(InMemoryModel(self.spec), outcomes, deque())
        with self.before.open("rb") as file:
            _, model, state = (pickle.load(file) for _ in range(3))  # noqa: S301 - written above
        return _Learned(model, *state)


def _learn(learned: _Learned, chunk: StagedChunk, select: FieldSelection) -> ChunkSums:
    blocks = []
    for examples, _ in chunk.blocks:
        settled: Sequence[Settled] = ()
        if len(examples):
            settled = learned.outcomes.offer(examples)
            scores = learned.model.learn(select(examples))
            learned.waiting.append(scores[examples.kinds != Kind.CLICKED])
        blocks.append(_summed(learned, settled))
    if chunk.last:
        blocks.append(_summed(learned, learned.outcomes.flush()))
    return ChunkSums(checksum_of(chunk), blocks)


def _summed(learned: _Learned, settled: Sequence[Settled]) -> Reals:
    sums = [loss_sums(outcomes, learned.waiting.popleft()) for outcomes in settled]
    return np.concatenate([np.zeros(0), *sums])


def checksum_of(chunk: StagedChunk) -> int:
    """Return a checksum of the examples of a chunk, in blocks or not."""
    checksum = 0
    for examples, _ in chunk.blocks:
        for values in _values(examples):
            checksum = zlib.crc32(np.ascontiguousarray(values).data, checksum)
    return checksum


def _values(examples: Examples) -> tuple[npt.NDArray[np.generic], ...]:
    features = examples.features
    return (
        *(examples.labels, examples.event_ms, examples.kinds),
        *(features.ids, features.bag_ids, features.numbers),
    )
