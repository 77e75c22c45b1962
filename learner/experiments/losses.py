"""Losses by batches of event time, from scores made before learning and outcomes known later.

Under `immediate`, an impression has its outcome when its window has passed, so scores wait that
long. The waiting is the same for all arms at one place of the log: `OutcomeJoin` follows outcomes
once for all, and each arm keeps the scores of the blocks that wait.

A batch is a span of event time. Impressions that come late count in the newest batch, so a batch
before the newest is closed for ever. An arm keeps two sums for each batch and no losses. Two arms
that have passed a batch have scored the same impressions in it, so the difference of their sums is
the sum of their paired differences.
"""

from collections import deque
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.ingest.examples.batch import Examples, Kind
from headrace.ingest.features.hashing import hash_strings
from headrace.learner.validation.progressive import log_losses

Reals = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

_CELL = 64
"""Impressions of a cell at most: losses are summed by cell."""
_MOST_PIECES = 128
"""Of a log; pieces get more cells instead."""


class Settled(NamedTuple):
    """The outcomes of a block's impressions."""

    labels: npt.NDArray[np.uint8]  # (n,)
    weights: Reals  # (n,)
    batches: Integers  # (n,) never decreasing


class _Waiting(NamedTuple):
    """A block whose impressions may still be clicked."""

    impressions: npt.NDArray[np.uint64]  # (n,) hashes of the ids
    labels: npt.NDArray[np.uint8]  # (n,) 1 if the block says so itself
    weights: Reals
    batches: Integers
    first_ms: int
    """Earliest impression."""
    last_ms: int
    """Latest impression; -1 if the block says all outcomes itself."""


class OutcomeJoin:
    """Follows the outcomes of one log from its begin. It can be pickled."""

    def __init__(self, window_ms: int, batch_ms: int) -> None:
        self._window_ms, self._batch_ms = window_ms, batch_ms
        self._waiting: deque[_Waiting] = deque()
        self._clicks: deque[tuple[int, npt.NDArray[np.uint64]]] = deque()
        self._clock_ms = self._batch = 0

    def offer(self, examples: Examples) -> list[Settled]:
        """Take the next block; return the outcomes of the oldest blocks, those that are final."""
        clicked = examples.kinds == Kind.CLICKED
        hashes = hash_strings(examples.impression_ids)
        shown = ~clicked
        if shown.any():
            shown_ms = examples.shown_ms[shown]
            batches = np.maximum.accumulate(np.maximum(shown_ms // self._batch_ms, self._batch))
            self._batch = int(batches[-1])
            weights = np.ones(shown_ms.shape[0])
            if examples.weights is not None:
                weights = examples.weights[shown].astype(np.float64)
            latest = int(shown_ms.max()) if (examples.kinds == Kind.SHOWN).any() else -1
            self._waiting.append(
                _Waiting(
                    *(hashes[shown], examples.labels[shown], weights, batches),
                    *(int(shown_ms.min()), latest),
                )
            )
        else:
            self._waiting.append(_nothing())
        if len(examples):
            self._clock_ms = max(self._clock_ms, int(examples.event_ms.max()))
        if clicked.any():
            self._clicks.append((self._clock_ms, hashes[clicked]))
        return self._settle(self._clock_ms - self._window_ms)

    def flush(self) -> list[Settled]:
        """Return the outcomes of all blocks that wait, as if no click would come any more."""
        return self._settle(self._clock_ms + 1)

    def _settle(self, before_ms: int) -> list[Settled]:
        """Return the outcomes of the oldest blocks whose impressions are older than a time."""
        settled: list[Settled] = []
        clicks: npt.NDArray[np.uint64] | None = None
        while self._waiting and self._waiting[0].last_ms < before_ms:
            block = self._waiting.popleft()
            labels = block.labels
            if block.last_ms >= 0 and self._clicks:
                if clicks is None:
                    clicks = np.concatenate([hashes for _, hashes in self._clicks])
                labels = labels | np.isin(block.impressions, clicks)
            settled.append(Settled(labels, block.weights, block.batches))
        oldest_ms = min((block.first_ms for block in self._waiting), default=self._clock_ms)
        while self._clicks and self._clicks[0][0] < oldest_ms:
            self._clicks.popleft()
        return settled


class LossTable:
    """Sums of losses and weights by batch. It can be pickled."""

    def __init__(self) -> None:
        self.first = 0
        """Number of the first batch."""
        self._losses: list[float] = []
        self._weights: list[float] = []

    def add_sums(self, settled: Settled, sums: Reals) -> None:
        """Add the losses of a block's impressions, as `loss_sums` returns them."""
        if not settled.batches.shape[0]:
            return
        if not self._losses:
            self.first = int(settled.batches[0])
        begin = int(settled.batches[0]) - self.first
        lacking = int(settled.batches[-1]) + 1 - self.first - len(self._losses)
        self._losses += [0.0] * lacking
        self._weights += [0.0] * lacking
        weights = np.bincount(settled.batches - settled.batches[0], settled.weights)
        for place, weight in enumerate(weights.tolist(), begin):
            self._weights[place] += weight
        losses = np.bincount(settled.batches[_begins(settled)] - settled.batches[0], sums)
        for place, loss in enumerate(losses.tolist(), begin):
            self._losses[place] += loss

    @property
    def closed(self) -> int:
        """Batches that no impression is added to any more."""
        return max(len(self._losses) - 1, 0)

    @property
    def total(self) -> tuple[float, float]:
        """Summed loss and weight of all impressions so far."""
        return sum(self._losses), sum(self._weights)

    @property
    def mean(self) -> float:
        """Mean loss of all impressions so far; NaN without any."""
        loss, weight = self.total
        return loss / weight if weight else float("nan")

    def sums(self, batches: int) -> tuple[Reals, Reals]:
        """Return losses and weights of the first batches."""
        return np.array(self._losses[:batches]), np.array(self._weights[:batches])


class LossPieces:
    """Losses of a log in pieces of as many cells. It can be pickled.

    Pieces grow with the log, so their number is bounded. Two arms at one place have the same
    pieces. Their differences by piece have a variance, which that of the means follows from.
    """

    def __init__(self) -> None:
        self._cells, self._size = 0, 1
        self._losses: list[float] = []
        self._weights: list[float] = []

    def add(self, settled: Settled, sums: Reals) -> None:
        """Add the losses of a block's impressions, as `loss_sums` returns them."""
        weights = np.bincount(cells_of(settled), settled.weights)
        first, within = divmod(self._cells, self._size)
        places = (within + np.arange(sums.shape[0])) // self._size
        self._cells += sums.shape[0]
        for place, (loss, weight) in enumerate(
            zip(np.bincount(places, sums), np.bincount(places, weights), strict=True), first
        ):
            if place == len(self._losses):
                self._losses.append(0.0)
                self._weights.append(0.0)
            self._losses[place] += float(loss)
            self._weights[place] += float(weight)
        while len(self._losses) > _MOST_PIECES:
            self._size *= 2
            self._losses = _in_twos(self._losses)
            self._weights = _in_twos(self._weights)

    @property
    def sums(self) -> tuple[Reals, Reals]:
        """Return losses and weights by piece."""
        return np.array(self._losses), np.array(self._weights)


def _in_twos(values: list[float]) -> list[float]:
    return [sum(values[place : place + 2]) for place in range(0, len(values), 2)]


def loss_sums(settled: Settled, scores: Reals) -> Reals:
    """Return the summed log losses of a block's impressions by cell."""
    if not scores.shape[0]:
        return np.zeros(0)
    losses = log_losses(settled.labels, scores) * settled.weights
    # the weights make the sums floats
    return np.asarray(np.bincount(cells_of(settled), losses), np.float64)


def cells_of(settled: Settled) -> Integers:
    """Return the cell of each impression of a block, from 0; a cell is within one batch."""
    cells: Integers = np.cumsum(_begins(settled)) - 1
    return cells


def _begins(settled: Settled) -> npt.NDArray[np.bool_]:
    """Return which impressions of a block begin a cell; shape (n,)."""
    begins: npt.NDArray[np.bool_] = np.zeros(settled.batches.shape[0], np.bool_)
    begins[::_CELL] = True
    begins[1:] |= np.diff(settled.batches) > 0
    return begins


def paired(arm: LossTable, control: LossTable) -> tuple[Reals, Reals]:
    """Return the summed paired differences of all batches closed for both, and their weights."""
    closed = min(arm.closed, control.closed)
    losses, weights = arm.sums(closed)
    control_losses, _ = control.sums(closed)
    return losses - control_losses, weights


def _nothing() -> _Waiting:
    none = np.zeros(0)
    integers = none.astype(np.int64)
    return _Waiting(none.astype(np.uint64), none.astype(np.uint8), none, integers, 1 << 62, -1)
