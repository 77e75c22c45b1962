"""What a learner does not let into a model: batches that would break it.

One bad producer can ruin a model that learns at once: a number that is infinite, a unit that
changed overnight, labels turned around. So before a batch is learned its numbers are looked at, and
after it the scores made on the way and what the rows gained. A batch that fails is held back: what
is pending is let go of, the examples since the last push are read again, and this batch is passed
over. That is the road of a refused push, and costs nothing until it is taken. The batch stays where
it lies in Kafka; a dead letter says where, and why.

The loss that is watched is that of the scores made before learning: of an impression whose label is
known its cross entropy, of one just shown that of a negative; a click that comes by itself, under
`immediate`, is not scored again and not in it. So labels turned around are seen under `window`;
under `immediate` a flood of clicks is seen once the model answers by it. The loss may rise to
`loss_ratio` times its running mean, which nobody keeps: after a start it has to be seen anew. A
batch held back raises the mean as well, up to that bound: what looks like a fault and lasts is the
world, and is learned after some tens of batches. Each batch is judged by its loss once: when it is
read again, the model knows less than when it was let through, and a young one nothing at all.

Of learners that step together nothing can be undone: there a batch is judged before it is learned,
by a rehearsal (learner.models.deep.dry_run).

What a batch did is told by the scores of what comes after it in the same batch. One that does its
harm with its last examples (a deep model's last mini-batch) is let through if no gain is too large,
and the batches after it are held back instead, until the running mean has followed.

What is held back before a push has no scores: accuracy is measured on what was learned. Gains are
looked at before each push, and after each batch only when some push would have carried too large
ones: scores of a batch found in this way were sent already.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headrace.ingest.examples import Kind

if TYPE_CHECKING:
    import numpy.typing as npt

    from headrace.ingest.examples import Examples

_REMEMBERED = 10_000
"""Batches held back, the last ones: one that is read again is passed over again."""


def quarantine_letter(examples: int, reason: str) -> str:
    """Return what the dead letter of a batch held back says."""
    return f"batch of {examples} examples held back: {reason}"


def quarantine_reason(letter: str) -> int:
    """Return how many examples a dead letter says were held back; 0 if it is about none."""
    found = re.match(r"batch of (\d+) examples held back: ", letter)
    return int(found[1]) if found else 0


@dataclass(frozen=True, slots=True)
class GuardLimits:
    """What a batch may do."""

    loss_ratio: float = 4.0
    """Of its mean loss to the running mean: a model that lost its calibration is far beyond it."""
    least_examples: int = 100
    """Scored in a batch whose loss is judged: the mean of fewer says little."""
    warm_up_examples: int = 10_000
    """Before the running mean says anything."""
    memory_examples: int = 100_000
    """Over which the running mean is taken, roughly."""
    largest_gain: float = 1e12
    """Of one float of a row between two pushes: squares of gradients of a million."""


class BatchGuard:
    """Judges batches, and remembers which are to be passed over."""

    def __init__(self, limits: GuardLimits | None = None) -> None:
        self.limits = limits or GuardLimits()
        self.careful = False
        """Whether gains are looked at after every batch, to find the one that broke them."""
        self._held: dict[tuple[str, int], str] = {}
        self._told: dict[tuple[str, int], None] = {}
        self._judged: dict[str, int] = {}  # source -> offset up to which batches had a loss
        self._seen, self._mean = 0, 0.0

    def reason(self, name: str, offset: int, examples: Examples) -> str | None:
        """Return why the batch at an offset of this source must not be learned, None if it may."""
        if (held := self._held.get((name, offset))) is not None:
            return held
        numbers = examples.features.numbers
        bad = np.flatnonzero(~np.isfinite(numbers).all(axis=1))
        if bad.shape[0]:
            return f"expected finite numbers, found others in {bad.shape[0]} examples"
        return None

    def judge(
        self,
        name: str,
        offset: int,
        examples: Examples,
        scores: npt.NDArray[np.float64],
        largest_gain: float,
    ) -> str | None:
        """Return why what was learned of a batch must be undone, None if it may stay.

        largest_gain: of what is pending, 0 if nobody looked.
        """
        scored = examples.kinds != Kind.CLICKED
        made, labels = scores[scored], examples.labels[scored]
        if not np.isfinite(made).all():
            return f"expected finite scores, found {np.count_nonzero(~np.isfinite(made))} others"
        if (why := self.exploded(largest_gain)) is not None:
            return why
        if not made.shape[0] or offset <= self._judged.get(name, -1):
            return None
        self._judged[name] = offset
        loss = float(-np.log(np.where(labels > 0, made, 1.0 - made)).mean())
        return self._jump(loss, made.shape[0])

    def exploded(self, largest_gain: float) -> str | None:
        """Return what is wrong with gains of which this is the largest, None if nothing is."""
        limit = self.limits.largest_gain
        if math.isfinite(largest_gain) and largest_gain <= limit:
            return None
        return f"expected gains of rows up to {limit:g}, found {largest_gain:g}: gradients explode"

    def hold(self, name: str, offset: int, reason: str) -> None:
        """Pass over the batch at this offset when it comes again."""
        self.careful = False
        self._held[name, offset] = reason
        if len(self._held) > _REMEMBERED:
            del self._held[next(iter(self._held))]

    def tell(self, name: str, offset: int) -> bool:
        """Return whether nobody was told of this batch yet; from now on, somebody was."""
        if (name, offset) in self._told:
            return False
        self._told[name, offset] = None
        if len(self._told) > _REMEMBERED:
            del self._told[next(iter(self._told))]
        return True

    def _jump(self, loss: float, examples: int) -> str | None:
        limits, before = self.limits, self._mean
        known = self._seen >= limits.warm_up_examples
        bound = limits.loss_ratio * before
        self._seen += examples
        share = max(examples / limits.memory_examples, examples / self._seen)
        taken = min(loss, bound) if known else loss
        self._mean += min(share, 1.0) * (taken - before)
        if known and examples >= limits.least_examples and loss > bound:
            return (
                f"expected a mean loss up to {bound:.4g}, {limits.loss_ratio:g} times the running "
                f"mean, found {loss:.4g} over {examples} examples"
            )
        return None
