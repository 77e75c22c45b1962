"""Quarantines batches that would break a model.

One bad producer can ruin a model that learns online: an infinite number, a unit that changed
overnight, inverted labels. So the guard looks at a batch's numbers before it is learned, and
afterwards at the scores made on the way and at what rows gained. A batch that fails is quarantined:
the learner drops what is pending, reads the examples since the last push again, and skips this
batch. That is the recovery path of a refused push, and costs nothing until it is taken. The batch
stays in Kafka; a dead letter gives its place and the reason.

The loss is that of the scores made before learning: the cross entropy of an impression whose label
is known, and for an impression without one the loss of a negative. A click that arrives alone,
under `immediate`, is not scored again and has no loss. So inverted labels show under `window`;
under `immediate` a flood of clicks shows once the model's scores follow it. The loss may rise to
`loss_ratio` times its running mean. The mean is not stored: it starts anew with the process. A
quarantined batch raises the mean too, up to that bound: a lasting change is learned after some tens
of batches. The loss of each batch is judged once: when the batch is read again, the model has
learned less than when the batch passed, and a young model nothing at all.

A batch shows its harm in the scores of its own later examples. One that does harm with its last
examples (the last mini-batch of a deep model) passes if no gain is too large; the batches after it
are then quarantined until the running mean has followed.

Examples quarantined before a push have no scores: accuracy is measured on what was learned. Gains
are checked before each push, and after each batch only when a push would have carried too large
ones. Scores of a batch found that way were sent before.

Learners that step together cannot undo a step (learner.models.sync_group). There each mini-batch is
inspected before it enters a round: its scores, its loss, and the largest gradient of any row or
layer, which may be up to `gradient_ratio` times its running mean. A mini-batch that fails is
quarantined alone; the rest of its batch is learned. The loss of mini-batches of fewer than
`least_examples` is not judged.
"""

from __future__ import annotations

import copy
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headrace.counted_nouns import counted
from headrace.ingest.examples import Kind

if TYPE_CHECKING:
    import numpy.typing as npt

    from headrace.ingest.examples import Examples
    from headrace.learner.kernels import PendingDeltas
    from headrace.learner.loop.merging import ExampleBatch
    from headrace.learner.models import MiniBatchEvidence

_REMEMBERED = 10_000
"""Quarantined batches, the latest: a batch that is read again is skipped again."""


def quarantine_letter(examples: int, reason: str) -> str:
    """Return the text of the dead letter of quarantined examples."""
    return f"batch of {counted(examples, 'example')} quarantined: {reason}"


def quarantine_reason(letter: str) -> tuple[int, str]:
    """Return the count and the reason of a dead letter of quarantined examples.

    (0, the text itself) if it is another letter. Older versions wrote "held back".
    """
    found = re.match(r"batch of (\d+) examples (?:quarantined|held back): (.*)", letter, re.DOTALL)
    return (int(found[1]), found[2]) if found else (0, letter)


@dataclass(frozen=True, slots=True)
class Unlearnable:
    """Numbers that no model can learn: NaN, infinity, exploding deltas. Quarantined."""

    reason: str


@dataclass(frozen=True, slots=True)
class Suspect:
    """Numbers that a model can learn, but that statistics find very unlikely."""

    reason: str


Verdict = Unlearnable | Suspect


@dataclass(frozen=True, slots=True)
class GuardLimits:
    """The bounds beyond which a batch is quarantined."""

    loss_ratio: float = 4.0
    """Mean loss of a batch over the running mean: a model that lost its calibration exceeds it."""
    gradient_ratio: float = 100.0
    """Largest gradient of a mini-batch over the running mean of these, in a synchronous group: a
    step that all members took stays, and what it ruined shows one mini-batch later."""
    least_examples: int = 100
    """Scored examples a batch needs for its loss to be judged: a smaller mean is noise."""
    warm_up_examples: int = 10_000
    """Before the running mean is used."""
    memory_examples: int = 100_000
    """Over which the running mean is taken, roughly."""
    largest_gain: float = 1e12
    """Of one float of a row between two pushes: the square of a gradient of a million."""


class BatchGuard:
    """Judges batches, and remembers which ones to skip."""

    def __init__(self, limits: GuardLimits | None = None) -> None:
        self.limits = limits or GuardLimits()
        self.careful = False
        """Whether deltas are checked after every batch, to find the one that broke them."""
        self.alert = self.lasting = False
        self._held: dict[tuple[str, int], Verdict] = {}
        self._reported: dict[tuple[str, int], None] = {}
        self._judged: dict[str, int] = {}  # source -> offset up to which losses were judged
        self._loss, self._gradient = _RunningMean(self.limits), _RunningMean(self.limits)

    def before(self, name: str, offset: int, examples: Examples) -> Verdict | None:
        """Return why the batch at an offset of this source must be skipped, or None."""
        if (held := self._held.get((name, offset))) is not None:
            return held
        numbers = examples.features.numbers
        bad = np.flatnonzero(~np.isfinite(numbers).all(axis=1))
        if bad.shape[0]:
            found = counted(bad.shape[0], "example")
            return Unlearnable(f"expected finite numbers, got NaN or infinity in {found}")
        return None

    def accepts(
        self,
        batch: ExampleBatch,
        scores: npt.NDArray[np.float64],
        pending: PendingDeltas,
    ) -> bool:
        """Return whether what was learned of a batch may stay; if not, undo all that is pending."""
        largest = pending.largest() if self.careful else 0.0
        verdict = self.judge(batch.name, batch.offset, batch.examples, scores, largest)
        if verdict is None:
            return True
        if not self.careful and self.exploded(pending.largest()):
            self.careful = True  # an earlier batch may have broken the model
        else:
            self.hold(batch.name, batch.offset, verdict)
        return False

    def refuses_push(self, pending: PendingDeltas) -> str | None:
        """Return why pending deltas must not be pushed, or None.

        A reason means that some batch since the last push is at fault: the guard is careful from
        now on, and finds it when they are read again.
        """
        reason = self.exploded(pending.largest())
        self.careful = self.careful or reason is not None
        return reason

    def inspect(self, evidence: MiniBatchEvidence) -> str | None:
        """Return why a mini-batch must not enter a round of its group, or None."""
        if not np.isfinite(evidence.scores).all():
            return _not_finite(evidence.scores)
        fault = self._gradient_fault(evidence.largest_gradient, evidence.scores.shape[0])
        scores = evidence.scores[evidence.scored]
        if fault is not None or not scores.shape[0]:
            return fault
        return self._loss_fault(scores, evidence.labels[evidence.scored], self._loss)

    def judge(
        self,
        name: str,
        offset: int,
        examples: Examples,
        scores: npt.NDArray[np.float64],
        largest_gain: float,
    ) -> Verdict | None:
        """Return why what was learned of a batch must be undone, or None.

        largest_gain: of all that is pending; 0 skips the check.
        """
        scored = examples.kinds != Kind.CLICKED
        made, labels = scores[scored], examples.labels[scored]
        if not np.isfinite(made).all():
            return Unlearnable(_not_finite(made))
        if (why := self.exploded(largest_gain)) is not None:
            return Unlearnable(why)
        if not made.shape[0] or offset <= self._judged.get(name, -1):
            return None
        self._judged[name] = offset
        fault = self._loss_fault(made, labels, self._loss)
        return Suspect(fault) if fault is not None else None

    def suspects(self, examples: Examples, scores: npt.NDArray[np.float64]) -> bool:
        """Return whether the scores of a batch that was merged with others look wrong.

        Nothing is remembered: which batch is at fault shows when each is learned alone.
        """
        scored = examples.kinds != Kind.CLICKED
        made, labels = scores[scored], examples.labels[scored]
        if not np.isfinite(made).all():
            return True
        return made.shape[0] > 0 and self._loss_fault(made, labels, self._loss.copied()) is not None

    def exploded(self, largest_gain: float) -> str | None:
        """Return why deltas are too large, given the largest of them, or None."""
        limit = self.limits.largest_gain
        if math.isfinite(largest_gain) and largest_gain <= limit:
            return None
        return f"expected row deltas up to {limit:g}, got {largest_gain:g}: gradients explode"

    def hold(self, name: str, offset: int, verdict: Verdict) -> None:
        """Skip the batch at this offset when it is read again."""
        self.careful = False
        self._held[name, offset] = verdict
        if len(self._held) > _REMEMBERED:
            del self._held[next(iter(self._held))]

    def first_report(self, name: str, offset: int) -> bool:
        """Return True once per batch: a batch that is read again is reported once."""
        if (name, offset) in self._reported:
            return False
        self._reported[name, offset] = None
        if len(self._reported) > _REMEMBERED:
            del self._reported[next(iter(self._reported))]
        return True

    def reconsider(self, examples: Examples, scores: npt.NDArray[np.float64]) -> bool:
        """Return whether a parked batch, scored by the present model, is no longer suspect."""
        return not self.suspects(examples, scores)

    def release(self, name: str, offset: int) -> None:
        """Forget the verdict on a batch: it may be learned now. Its loss is not judged again."""
        self._held.pop((name, offset), None)
        self._judged[name] = max(offset, self._judged.get(name, -1))

    def _loss_fault(
        self,
        scores: npt.NDArray[np.float64],
        labels: npt.NDArray[np.uint8],
        mean: _RunningMean,
    ) -> str | None:
        """Return what is wrong with the loss of these finite scores, or None; move the mean."""
        with np.errstate(divide="ignore"):  # a certain answer that was wrong: infinite loss
            loss = float(-np.log(np.where(labels > 0, scores, 1.0 - scores)).mean())
        limits, examples = self.limits, scores.shape[0]
        bound = mean.move(loss, examples, limits.loss_ratio)
        if examples >= limits.least_examples and loss > bound:
            return (
                f"expected a mean loss up to {bound:.4g}, {limits.loss_ratio:g} times the running "
                f"mean, got {loss:.4g} over {counted(examples, 'example')}"
            )
        return None

    def _gradient_fault(self, largest: float, examples: int) -> str | None:
        """Return what is wrong with the largest gradient of a mini-batch, or None."""
        limits = self.limits
        most = math.sqrt(limits.largest_gain)
        if math.isfinite(largest) and largest <= most:
            most = min(most, self._gradient.move(largest, examples, limits.gradient_ratio))
        if math.isfinite(largest) and largest <= most:
            return None
        return f"expected gradients up to {most:.4g}, got {largest:.4g}: gradients explode"


class _RunningMean:
    """A mean over the latest examples, and the bound that is a multiple of it."""

    def __init__(self, limits: GuardLimits) -> None:
        self._limits, self._seen, self._mean = limits, 0, 0.0

    def copied(self) -> _RunningMean:
        """Return a mean that moves on its own from here."""
        return copy.copy(self)

    def move(self, value: float, examples: int, ratio: float) -> float:
        """Return the bound for a value over so many examples, then move the mean towards it.

        The bound is infinite during warm-up. Beyond the bound, a value counts as the bound.
        """
        limits, known = self._limits, self._seen >= self._limits.warm_up_examples
        bound = ratio * self._mean if known else math.inf
        self._seen += examples
        share = max(examples / limits.memory_examples, examples / self._seen)
        self._mean += min(share, 1.0) * (min(value, bound) - self._mean)
        return bound


def _not_finite(scores: npt.NDArray[np.float64]) -> str:
    others = np.count_nonzero(~np.isfinite(scores))
    return f"expected finite scores, got {others} that are NaN or infinite"


class MiniBatchGuard(BatchGuard):
    """Guards a learner of a synchronous group, whose mini-batches are inspected one by one."""

    def accepts(
        self,
        batch: ExampleBatch,  # noqa: ARG002 (inspected before it was learned)
        scores: npt.NDArray[np.float64],  # noqa: ARG002
        pending: PendingDeltas,  # noqa: ARG002
    ) -> bool:
        """Return True: every mini-batch was inspected before its round."""
        return True

    def suspects(self, examples: Examples, scores: npt.NDArray[np.float64]) -> bool:  # noqa: ARG002
        """Return False: every mini-batch was inspected before its round."""
        return False


class NoGuard:
    """Accepts every batch."""

    careful = alert = lasting = False

    def before(self, name: str, offset: int, examples: Examples) -> Verdict | None:  # noqa: ARG002
        """Return None: no batch is skipped."""
        return None

    def accepts(
        self,
        batch: ExampleBatch,  # noqa: ARG002
        scores: npt.NDArray[np.float64],  # noqa: ARG002
        pending: PendingDeltas,  # noqa: ARG002
    ) -> bool:
        """Return True: nothing is undone."""
        return True

    def suspects(self, examples: Examples, scores: npt.NDArray[np.float64]) -> bool:  # noqa: ARG002
        """Return False: no batch is suspected."""
        return False

    def refuses_push(self, pending: PendingDeltas) -> str | None:  # noqa: ARG002
        """Return None: every gain may be pushed."""
        return None

    def inspect(self, evidence: MiniBatchEvidence) -> str | None:  # noqa: ARG002
        """Return None: every mini-batch enters its round."""
        return None

    def reconsider(
        self,
        examples: Examples,  # noqa: ARG002
        scores: npt.NDArray[np.float64],  # noqa: ARG002
    ) -> bool:
        """Return True: what was parked is learned."""
        return True

    def release(self, name: str, offset: int) -> None:
        """There is no verdict to forget."""

    def first_report(self, name: str, offset: int) -> bool:  # noqa: ARG002
        """Return False: there is nothing to report."""
        return False
