"""Keeps batches that would harm a model out of it.

One bad producer can ruin a model that learns online: an infinite number, a unit that changed
overnight, inverted labels. So the guard looks at a batch before it is learned, and afterwards at
the scores made on the way and at what rows gained. There are two kinds of verdict.

A batch is **unlearnable** if it has NaN or infinity, gives scores that are not finite, or makes
deltas explode. It is quarantined at once: a dead letter gives its place and the reason.

A batch is **suspect** if a fault explains its numbers, ids and labels far better than any good
traffic does (`surprise`, which gives the statistic and its sources).

Either way the learner drops what is pending, reads the examples since the last push again, and
leaves this batch out. That is the recovery path of a refused push, and costs nothing until it is
taken. From a suspicion on, the guard is on the `alert`, which ends after `calm_examples` good ones.
Meanwhile a batch can be judged before it is learned, by the scores that the model would give
(`screen`), which needs no undo.

A change may be real. If suspect batches go on for `lasting_ms` and for `lasting_examples`, or fill
`most_parked` messages, the change lasts: the guard forgets what it expected, judges nothing while
the model follows (`warm_up_examples`), and finds nothing suspect in what was parked (`reconsider`).
A batch that was suspect alone is found good as soon as the present model expects its labels. Labels
of one batch are judged once: when it is read again, the model has learned less than when it passed.

Evidence is not stored. A new process does not know how much its model has learned, nor which
clicks are still to come. So it judges no labels for `warm_up_examples`, whatever the model.

Gains are checked before each push, and after each batch only when a push would have carried too
large ones. Scores of a batch found that way were sent before. Examples quarantined before a push
have no scores: accuracy is measured on what was learned.

Learners that step together cannot undo a step (learner.models.sync_group). There each mini-batch is
inspected before it enters a round: its scores, and the largest gradient of any row or layer, which
may be up to `gradient_ratio` times its running mean. A mini-batch that fails is quarantined alone;
the rest of its batch is learned. Labels are judged after the batch: the first suspect batch stays
learned, and those after it are screened, which needs no undo.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.ingest.examples.batch import Examples, Kind
from headrace.learner.kernels.pending_deltas import PendingDeltas
from headrace.learner.loop.guard.stream_change import GradientMean, GuardLimits, StreamChange
from headrace.learner.loop.guard.surprise import StreamSurprise, Suspect
from headrace.learner.loop.merging import ExampleBatch
from headrace.learner.models.sync_group import MiniBatchEvidence
from headrace.runtime.counted_nouns import counted

_REMEMBERED = 10_000
"""Quarantined batches, the latest: a batch that is read again is skipped again."""
_DOUBT = 1.0 / 3.0
"""Share of the evidence of a suspicion that keeps a batch parked: good traffic has less."""


def quarantine_letter(examples: int, reason: str) -> str:
    """Return the text of the dead letter of quarantined examples."""
    return f"batch of {counted(examples, 'example')} quarantined: {reason}"


def quarantine_reason(letter: str) -> tuple[int, str]:
    """Return the count and the reason of a dead letter of quarantined examples.

    (0, the text itself) if it is another letter. Older versions wrote "held back".
    """
    found = re.match(
        r"batch of ([\d,]+) examples? (?:quarantined|held back): (.*)", letter, re.DOTALL
    )
    return (int(found[1].replace(",", "")), found[2]) if found else (0, letter)


@dataclass(frozen=True, slots=True)
class Unlearnable:
    """Numbers that no model can learn: NaN, infinity, exploding deltas. Quarantined."""

    reason: str


Verdict = Unlearnable | Suspect


class BatchGuard:
    """Judges batches, and remembers which ones to skip."""

    def __init__(self, window_ms: int, limits: GuardLimits | None = None) -> None:
        """`window_ms`: the label window."""
        self.limits = limits or GuardLimits()
        self.careful = False
        """Whether deltas are checked after every batch, to find the one that broke them."""
        self._verdicts: dict[tuple[str, int], Verdict] = {}
        self._reported: dict[tuple[str, int], None] = {}
        self._looked_at: dict[str, int] = {}  # source -> offset up to which inputs were judged
        self._judged: dict[str, int] = {}  # source -> offset up to which labels were judged
        self._surprise = StreamSurprise(self.limits.surprise, window_ms)
        self._shared_evidence: StreamSurprise | None = None
        """Of the batches that were reconsidered in this round."""
        self._change = StreamChange(self.limits)
        self._gradient = GradientMean(self.limits)

    @property
    def alert(self) -> bool:
        """Whether a batch was suspect lately: the next are screened before they are learned."""
        return self._change.open

    @property
    def lasting(self) -> bool:
        """Whether a change lasts, and the model follows: what was parked can be learned."""
        return self._change.follows and self._change.lasted

    def before(self, name: str, offset: int, examples: Examples) -> Verdict | None:
        """Return why the batch at an offset of this source must be left out, or None."""
        if (verdict := self._verdicts.get((name, offset))) is not None:
            return verdict
        finite = np.isfinite(examples.features.numbers)
        if not finite.all():
            found = counted(int(np.count_nonzero(~finite.all(axis=1))), "example")
            return Unlearnable(f"expected finite numbers, got NaN or infinity in {found}")
        if offset <= self._looked_at.get(name, -1):
            return None
        self._looked_at[name] = offset
        why = self._surprise.of_inputs(examples)
        verdict = self._suspect(why, examples) if why is not None else None
        if verdict is not None:
            self.skip_on_reread(name, offset, verdict)
        return verdict

    def screens(self, name: str, offset: int) -> bool:
        """Return whether `screen` wants the scores of a batch before it is learned."""
        return self.alert and offset > self._judged.get(name, -1)

    def screen(self, batch: ExampleBatch, scores: npt.NDArray[np.float64]) -> bool:
        """Return whether a batch may be learned, by the scores that the model would give now.

        If not, `before` has the verdict. scores: (n,), of clicks ignored.
        """
        if _unfinished(batch.examples, scores) is not None:
            return True  # learning it will show at which example
        verdict = self._of_labels(batch.name, batch.offset, batch.examples, scores)
        if verdict is not None:
            self.skip_on_reread(batch.name, batch.offset, verdict)
        return verdict is None

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
            self.skip_on_reread(batch.name, batch.offset, verdict)
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
        why = _not_finite(evidence.scores)
        return why or self._gradient_fault(evidence.largest_gradient, evidence.scores.shape[0])

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
        if (why := _unfinished(examples, scores)) is not None:
            return Unlearnable(why)
        if (why := self.exploded(largest_gain)) is not None:
            return Unlearnable(why)
        return self._of_labels(name, offset, examples, scores)

    def suspects(self, shares: Sequence[tuple[ExampleBatch, npt.NDArray[np.float64]]]) -> bool:
        """Return whether the scores of a batch that was merged with others look wrong.

        If so, nothing of them is remembered but the alert: one may have spoiled the scores of the
        others. Which one is at fault shows when each is learned alone.
        """
        if any(_unfinished(batch.examples, scores) is not None for batch, scores in shares):
            return True
        surprise, judged = self._surprise.copied(), dict(self._judged)
        for batch, scores in shares:
            if self._of_labels(batch.name, batch.offset, batch.examples, scores) is not None:
                self._surprise, self._judged = surprise, judged
                return True
        return False

    def reconsider(
        self, examples: Examples, scores: npt.NDArray[np.float64], *, new_round: bool
    ) -> bool:
        """Return whether a parked batch is not suspect any more.

        scores: (n,) that the model would give now. The batches of a round are judged together,
        also when others are learned between them: ten examples prove nothing alone. new_round:
        begin without the evidence of earlier batches.
        """
        if self.lasting:
            return True
        earlier = None if new_round else self._shared_evidence
        self._shared_evidence = self._surprise.again(_DOUBT, earlier)
        why = self._shared_evidence.of_inputs(examples) or self._shared_evidence.of_labels(
            examples, scores
        )
        return why is None

    def exploded(self, largest_gain: float) -> str | None:
        """Return why deltas are too large, given the largest of them, or None."""
        limit = self.limits.largest_gain
        if math.isfinite(largest_gain) and largest_gain <= limit:
            return None
        return f"expected row deltas up to {limit:g}, got {largest_gain:g}: gradients explode"

    def skip_on_reread(self, name: str, offset: int, verdict: Verdict) -> None:
        """Leave out the batch at this offset when it is read again."""
        self.careful = False
        self._verdicts[name, offset] = verdict
        if len(self._verdicts) > _REMEMBERED:
            del self._verdicts[next(iter(self._verdicts))]

    def learn_on_reread(self, name: str, offset: int) -> None:
        """Learn the batch at this offset when it is read again; its labels count as judged."""
        self._verdicts.pop((name, offset), None)
        self._judged[name] = max(offset, self._judged.get(name, -1))

    def first_report(self, name: str, offset: int) -> bool:
        """Return True once per batch: a batch that is read again is reported once."""
        if (name, offset) in self._reported:
            return False
        self._reported[name, offset] = None
        if len(self._reported) > _REMEMBERED:
            del self._reported[next(iter(self._reported))]
        return True

    def _of_labels(
        self, name: str, offset: int, examples: Examples, scores: npt.NDArray[np.float64]
    ) -> Suspect | None:
        if offset <= self._judged.get(name, -1):
            return None
        self._judged[name] = offset
        judged = not self._change.follows
        why = self._surprise.of_labels(examples, scores, judged=judged)
        if why is not None:
            return self._suspect(why, examples)
        self._change.good(len(examples))
        return None

    def _suspect(self, verdict: Suspect, examples: Examples) -> Suspect | None:
        """Return the verdict of a test on a batch, or None if such batches have come for long."""
        if self._change.suspected(examples):
            self._surprise.forget()
            return None
        return verdict

    def _gradient_fault(self, largest: float, examples: int) -> str | None:
        """Return what is wrong with the largest gradient of a mini-batch, or None."""
        limits = self.limits
        most = math.sqrt(limits.largest_gain)
        if math.isfinite(largest) and largest <= most:
            most = min(most, self._gradient.move(largest, examples, limits.gradient_ratio))
        if math.isfinite(largest) and largest <= most:
            return None
        return f"expected gradients up to {most:.4g}, got {largest:.4g}: gradients explode"


def _unfinished(examples: Examples, scores: npt.NDArray[np.float64]) -> str | None:
    """Return what is wrong if a score is NaN or infinite, or None; those of clicks do not count."""
    if np.isfinite(scores).all():
        return None
    return _not_finite(np.where(examples.kinds == Kind.CLICKED, 0.0, scores))


def _not_finite(scores: npt.NDArray[np.float64]) -> str | None:
    bad = int(np.count_nonzero(~np.isfinite(scores)))
    return f"expected finite scores, got {bad} that are NaN or infinite" if bad else None


class MiniBatchGuard(BatchGuard):
    """Guards a learner of a synchronous group, whose mini-batches are inspected one by one."""

    def accepts(
        self,
        batch: ExampleBatch,
        scores: npt.NDArray[np.float64],
        pending: PendingDeltas,  # noqa: ARG002
    ) -> bool:
        """Return True: a step that all took stays. A suspect batch puts the next on the alert."""
        if _unfinished(batch.examples, scores) is None:
            self._of_labels(batch.name, batch.offset, batch.examples, scores)
        return True

    def suspects(
        self,
        shares: Sequence[tuple[ExampleBatch, npt.NDArray[np.float64]]],  # noqa: ARG002
    ) -> bool:
        """Return False: every mini-batch was inspected before its round."""
        return False


class NoGuard(BatchGuard):
    """Accepts every batch."""

    def __init__(self) -> None:
        super().__init__(0)

    def before(self, name: str, offset: int, examples: Examples) -> None:  # noqa: ARG002
        """Return None: no batch is left out."""
        return

    def accepts(
        self,
        batch: ExampleBatch,  # noqa: ARG002
        scores: npt.NDArray[np.float64],  # noqa: ARG002
        pending: PendingDeltas,  # noqa: ARG002
    ) -> bool:
        """Return True: nothing is undone."""
        return True

    def suspects(
        self,
        shares: Sequence[tuple[ExampleBatch, npt.NDArray[np.float64]]],  # noqa: ARG002
    ) -> bool:
        """Return False: no batch is suspected."""
        return False

    def reconsider(
        self,
        examples: Examples,  # noqa: ARG002
        scores: npt.NDArray[np.float64],  # noqa: ARG002
        *,
        new_round: bool,  # noqa: ARG002
    ) -> bool:
        """Return True: what another learner parked may be learned."""
        return True

    def refuses_push(self, pending: PendingDeltas) -> None:  # noqa: ARG002
        """Return None: every gain may be pushed."""
        return

    def inspect(self, evidence: MiniBatchEvidence) -> None:  # noqa: ARG002
        """Return None: every mini-batch enters its round."""
        return
