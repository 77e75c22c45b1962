"""Early stopping: the log loss of held-out examples decides after which epoch a fit stops.

A fit in one process keeps its decision with its other progress (`fit_folder`). A fit into a
parameter server has many processes, perhaps on several machines, so one of them decides: the first
part. An epoch is then a barrier.

1. All parts learn their files of the epoch. The first part also learns the files that the marks of
   the buckets lack, so the epoch ends even if another machine is lost.
2. Now all buckets have all rows of the epoch, and the marks fence every further push of it. The
   rows no longer change. The first part reads them, scores the held-out examples, and saves the
   rows if their loss is the lowest so far.
3. It writes its decision as one small file beside the staged files. The other parts wait for this
   file before they begin the next epoch, or end.

The decision is a function of the rows, and the rows are those that the marks name. A first part
that was killed at any line therefore decides the same after its restart, or finds its decision. If
two processes run as the first part, the second finds the decision of the other: it looks after it
has read the rows, and no process begins the next epoch before the decision is written.

*Refused:* a decision in each process, from its own copy of the rows. The copies differ by the
pushes in flight, so the processes would not stop after the same epoch. *Refused:* taking the rows
of the best epoch back in the parameter server. The first part loads the saved rows, learns the
held-out examples in its memory, and drops the model of the run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.ingest.examples.batch import Examples
from headrace.learner.inputs.slates import slate_ends
from headrace.learner.validation.log_loss_sum import LogLossSum

if TYPE_CHECKING:
    from headrace.learner.local.in_memory_model import InMemoryModel


class EpochDecision(msgspec.Struct, frozen=True):
    """The last decision, and the best epoch so far."""

    decided: int = 0
    """Epochs whose loss is measured."""
    best: int = 0
    """The epoch with the lowest loss, from 1; 0 before the first."""
    best_loss: float | None = None
    """Its log loss; None before the first epoch, or if no held-out example has a final label."""
    rows: str = ""
    """Name of the snapshot after the best epoch."""
    ended: bool = False
    """Whether no epoch follows."""

    def improves(self, loss: float) -> bool:
        """Return whether a loss is the first or the lowest."""
        return not self.best or (self.best_loss is not None and loss < self.best_loss)

    def after(self, loss: float, rows: str, epochs: int) -> EpochDecision:
        """Return the decision about the next epoch; `rows` counts only if the loss improves."""
        decided = self.decided + 1
        if not self.improves(loss):
            return msgspec.structs.replace(self, decided=decided, ended=True)
        known = None if loss != loss else loss
        return EpochDecision(decided, decided, known, rows, ended=decided >= epochs)


def held_out_loss(model: InMemoryModel, blocks: Iterable[Examples]) -> float:
    """Return the mean log loss of examples that are scored and not learned; NaN without labels."""
    loss = LogLossSum()
    for examples in blocks:
        scores = model.predict(examples.features, examples.event_ms, slate_ends(examples))
        add_scores(loss, examples, scores)
    return loss.mean


def add_scores(loss: LogLossSum, examples: Examples, scores: npt.NDArray[np.float64]) -> None:
    """Add the examples with a final label; an open impression may still be clicked."""
    known = examples.settled
    weights = None if examples.weights is None else examples.weights[known]
    loss.add(examples.labels[known], scores[known], weights)
