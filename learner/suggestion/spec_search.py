"""Searches the inputs and constants that lower the log loss of a sample, by learning it.

The sample is learned in memory, as a learner does: each request is scored before it is learned. A
candidate is one change of the spec: a statistic of an id, a cross, a loss, another rate. It is
screened on the first third of the impressions. The best candidates then learn the whole sample, one
by one, and are judged on the impressions after that third and before the last part, so the
screening is no part of the verdict. A candidate is kept if it lowers the loss there by more than
chance: the differences to the spec so far are paired and averaged by batch, and the bound allows
for a hundred verdicts. After a change, the other candidates are tried again beside it. A rate of
the rules is removed if it surely saves less than a thousandth.

Inputs are searched with logistic regression, which learns a sample in a second or two. If another
architecture is asked for, it takes the inputs that were found, and the rest of the time is spent on
its history and constants.

The last part of the sample decides nothing, and the gains of the report are those of this part.
Inputs cost time in every process, so a gain below a thousandth is refused.

*Refused:* an anytime-valid bound (`learner.experiments.confidence`). A verdict is made once, at a
size known before, and the sequence needed five standard errors in place of three.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from headrace.learner.spec.model_spec import parse_spec
from headrace.learner.suggestion.sample_stream import SampleStream
from headrace.learner.suggestion.search_candidates import Candidate
from headrace.learner.suggestion.spec_draft import SpecDraft

Floats = npt.NDArray[np.float64]
Tell = Callable[[float, str], None]
"""Takes the share of the time that is over, and what is tried."""

_SCREENED = 1 / 3
"""Share of the impressions by which candidates are screened; the later half of it counts."""
_CHOSEN = 0.7
"""Share of the impressions by which anything is chosen."""
_SCREENING = 0.6
"""Most of the time of a round that its screening takes, so that a busy machine judges too."""
_LEAST_GAIN = 0.001
"""Share of the log loss."""
_HOPELESS = -0.001
"""Candidates that screen below it are not tried again."""
_BATCHES = 40
_LEAST_T = 3.3
"""Of the differences of the batches: chance exceeds it once in a thousand verdicts."""
_REMOVAL_T = 2.0
_MOST_KEPT = 20
_MOST_STEPS = 3
"""Halvings or doublings of a constant."""


@dataclass(slots=True)
class Trial:
    """One candidate, and what it did to the log loss: shares, positive if it fell."""

    name: str
    screened: float | None = None
    """In the first third; None: not screened."""
    judged: float | None = None
    """After it; None: the screening was enough."""
    later: float | None = None
    """In the last part, over the spec before; None: not kept."""


@dataclass(frozen=True, slots=True)
class SearchedSpec:
    """The result of a search."""

    draft: SpecDraft
    trials: list[Trial]
    gain: float
    """Share of the log loss of the last part that all changes remove."""
    seconds: float


class SpecSearch:
    """A search from one draft. Its clock begins when the draft itself is learned."""

    def __init__(
        self,
        draft: SpecDraft,
        stream: SampleStream,
        seconds: float,
        tell: Tell = lambda _share, _text: None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream, self._seconds, self._tell, self._clock_s = stream, seconds, tell, clock_s
        self._steps = [draft]
        """The draft, and what it was after each change that was kept."""
        self._kept: list[Trial] = []
        self._trials: dict[str, Trial] = {}
        self._began_s = clock_s()
        self._losses = [self._learned("the spec of the rules", draft)]
        """Those of the whole sample, by each of the steps."""
        self._began_s = clock_s()  # kernels may have been compiled before

    @property
    def draft(self) -> SpecDraft:
        """The best draft so far."""
        return self._steps[-1]

    def try_all(self, candidates: Sequence[Candidate], until: float) -> bool:
        """Screen candidates, judge the best, and return whether any was kept.

        A change that the draft has is not tried again. until: share of the time.
        """
        found, kept = [], len(self._kept)
        spent = self._spent()
        screened_until = spent + _SCREENING * (until - spent)
        names = {each.name for each in self._kept}
        new = (each for each in candidates if each.name not in names)
        for each in sorted(new, key=self._promise, reverse=True):
            if self._over(screened_until) or self._promise(each) < _HOPELESS:
                break
            trial = self._trials.setdefault(each.name, Trial(each.name))
            losses = self._learned(each.name, each.change(self.draft), _SCREENED)
            half, end = losses.shape[0] // 2, losses.shape[0]
            trial.screened = _gain(self._losses[-1][half:end], losses[half:])
            if trial.screened > _LEAST_GAIN / 2:
                found.append((trial.screened, each))
        for _, each in sorted(found, key=lambda pair: -pair[0]):
            if self._over(until) or len(self._kept) >= _MOST_KEPT:
                break
            self._judge(each)
        return len(self._kept) > kept

    def drop(self, candidates: Sequence[Candidate]) -> None:
        """Keep each change that removes an input, if the input is surely worth too little."""
        for each in candidates:
            if not self._over(1.0):
                self._judge(each, removes=True)

    def tune(self, name: str, factors: Sequence[float] = (0.5, 2.0)) -> None:
        """Halve or double a constant, one of `ConstantFactors`, as long as that helps."""
        before = self.draft
        for factor in factors:
            change = partial(SpecDraft.scaled, name=name, factor=factor)
            for steps in range(1, _MOST_STEPS + 1):
                candidate = Candidate(f"{name} times {factor**steps:g}", change)
                if self._over(1.0) or not self._judge(candidate):
                    break
            if self.draft is not before:
                return

    def judge_each(self, candidates: Sequence[Candidate]) -> None:
        """Judge candidates one after the other, without a screening, as long as there is time.

        For changes whose gain grows with the impressions learned, so that a screening misses it.
        """
        for each in candidates:
            if not self._over(1.0):
                self._judge(each)

    def take(self, candidate: Candidate) -> None:
        """Keep a change that the user asked for, also if the log loss rises."""
        self._judge(candidate, asked=True)

    def result(self) -> SearchedSpec:
        """Return what was found, with the gains of the last part."""
        last = [each[int(_CHOSEN * each.shape[0]) :] for each in self._losses]
        for trial, (before, after) in zip(self._kept, pairwise(last), strict=True):
            trial.later = _gain(before, after)
        return SearchedSpec(
            self.draft,
            [*self._trials.values()],
            _gain(last[0], last[-1]),
            self._clock_s() - self._began_s,
        )

    def _judge(self, candidate: Candidate, *, removes: bool = False, asked: bool = False) -> bool:
        """Learn the sample with a candidate; keep it if it is better, and return whether it is.

        removes: whether it need not be better, because it removes an input. asked: whether it is
        kept in any case.
        """
        trial = self._trials.setdefault(candidate.name, Trial(candidate.name))
        draft = candidate.change(self.draft)
        losses = self._learned(candidate.name, draft)
        judged = slice(int(_SCREENED * losses.shape[0]), int(_CHOSEN * losses.shape[0]))
        before, after = self._losses[-1][judged], losses[judged]
        trial.judged = _gain(before, after)
        saved, error = _saved(before, after)
        worth = _LEAST_GAIN * float(before.mean())
        if removes:
            better = saved - _REMOVAL_T * error > -worth
        else:
            better = saved > max(worth, _LEAST_T * error)
        if not better and not asked:
            return False
        self._steps.append(draft)
        self._kept.append(trial)
        self._losses.append(losses)
        return True

    def _promise(self, candidate: Candidate) -> float:
        """Return the gain of the last screening; infinite before any."""
        trial = self._trials.get(candidate.name)
        return math.inf if trial is None or trial.screened is None else trial.screened

    def _learned(self, name: str, draft: SpecDraft, share: float = 1.0) -> Floats:
        self._tell(min(self._spent(), 1.0), name)
        return self._stream.losses(parse_spec(draft.text(), "suggested spec"), share)

    def _over(self, until: float) -> bool:
        return self._spent() >= until

    def _spent(self) -> float:
        """Return the share of the time that is over."""
        return (self._clock_s() - self._began_s) / self._seconds


def _gain(before: Floats, after: Floats) -> float:
    return float(1 - after.mean() / before.mean())


def _saved(before: Floats, after: Floats) -> tuple[float, float]:
    """Return the mean paired difference of losses, and its standard error from batches."""
    size = before.shape[0] // _BATCHES
    means = (before - after)[: size * _BATCHES].reshape(_BATCHES, size).mean(axis=1)
    return float(means.mean()), float(means.std(ddof=1)) / math.sqrt(_BATCHES)
