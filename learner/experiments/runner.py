"""Runs an experiment over a log: reads and decodes once, and steps all arms in memory.

Arms at one place of the log form a cohort, which reads on together. The runner always advances the
cohort that is furthest behind, so an arm that begins late catches up before the others go on, and
then joins them. The control begins first and is never behind an arm.

After every block come, in this order: ranks at a rung, a look at arms whose batch closed, and new
arms in free slots. All of it depends on the file, the seed and the log alone. A state is saved
between two blocks, so a runner that was killed goes on bit for bit.
"""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from headrace.learner.batch.sources import ExampleBlock, ExampleLog, FilePosition
from headrace.learner.experiments.arm import Arm
from headrace.learner.experiments.decisions import ArmVerdict, Look, look
from headrace.learner.experiments.executors.remote_arms import RemoteArms
from headrace.learner.experiments.experiment_file import ArmPlan, Experiment, rung_examples
from headrace.learner.experiments.history import (
    BEGUN,
    BETTER,
    ELIMINATED,
    ENDED,
    RUNG,
    SCORED,
    STOPPED,
    ArmRecord,
    EndedArm,
    ExperimentProgress,
    ExperimentResult,
)
from headrace.learner.experiments.losses import OutcomeJoin, paired
from headrace.learner.experiments.run_folder import RunFolder
from headrace.learner.experiments.rungs import PieceSums, Placement, Rungs, compared_arm
from headrace.learner.experiments.suggestions import OptunaSuggestions
from headrace.runtime.counted_nouns import counted

_CONTROL = 0


class Cohort:
    """Arms at one place of the log."""

    def __init__(self, experiment: Experiment) -> None:
        label, rules = experiment.control.fields.label, experiment.rules
        self.arms: list[Arm] = []
        self.outcomes = OutcomeJoin(label.window_ms, rules.batch_ms)
        self.after: object = FilePosition()
        self.examples = self.event_ms = self.rung = 0
        self.read = 0.0
        self.ended = False


class _Run:
    """All that is saved. It is pickled."""

    def __init__(self, experiment: Experiment) -> None:
        self.cohorts: list[Cohort] = []
        self.begun = -1
        self.steps = 0
        self.rungs = Rungs(experiment.rungs.factor)
        optuna = experiment.sampler == "optuna"
        self.suggestions = OptunaSuggestions(experiment) if optuna else None
        self.control_at_rungs: list[PieceSums] = []
        """Losses of the control before each rung."""
        self.result: ExperimentResult | None = None
        self.ended: list[EndedArm] = []
        self.kept: Any = None


class ExperimentRunner:
    """One experiment over one log."""

    def __init__(
        self,
        experiment: Experiment,
        source: ExampleLog,
        folder: RunFolder,
        save_every_s: float = 60.0,
        may_begin: Callable[[], bool] = lambda: True,
        remote: RemoteArms | None = None,
    ) -> None:
        """Continue where the folder says, or begin.

        may_begin: whether the log still has its first examples, which new arms learn first. remote:
        learns the arms in tasks; `source` is its staged log. Raises LearnerError.
        """
        self._experiment, self._source, self._folder = experiment, source, folder
        self._remote = remote
        self._save_every_s, self._may_begin = save_every_s, may_begin
        saved = folder.load(experiment.fingerprint, source.identity)
        self.resumed = saved is not None
        """Whether this goes on with an interrupted run."""
        self._run: _Run = saved.run if saved is not None else _Run(experiment)
        self._reading: dict[int, Iterator[ExampleBlock]] = {}
        """By the identity of a cohort: its place in the log."""
        self._saved_steps = self._run.steps if self.resumed else -1

    def run(
        self, stop: threading.Event, tell: Callable[[ExperimentProgress], object]
    ) -> ExperimentResult | None:
        """Run to the end of the log; return None if `stop` was set before: the next run goes on."""
        if self._run.result is not None:
            return self._run.result
        save_at_s = time.monotonic() + self._save_every_s
        self._begin_arms()
        while (cohort := self._furthest_behind()) is not None:
            if self._remote is not None:
                self._remote.prepare(self._places(cohort))
            self._advance(cohort)
            self._join_cohorts()
            self._begin_arms()
            tell(self._progress())
            if stop.is_set() or time.monotonic() >= save_at_s:
                if self._run.steps != self._saved_steps:
                    self.save()
                save_at_s = time.monotonic() + self._save_every_s
            if stop.is_set():
                return None
        self._run.result = self._finish()
        self.save()
        return self._run.result

    # ------------------------------------------------------------------------------ the order

    def _furthest_behind(self) -> Cohort | None:
        waiting = [cohort for cohort in self._run.cohorts if not cohort.ended]
        return min(waiting, key=lambda cohort: cohort.examples, default=None)

    def _advance(self, cohort: Cohort) -> None:
        """Learn the next block; at the end of the log, take the outcomes that remain."""
        blocks = self._reading.get(id(cohort))
        if blocks is None:
            blocks = self._reading[id(cohort)] = iter(self._source.blocks(cohort.after))
        block = next(blocks, None)
        if block is None:
            cohort.ended, cohort.read = True, 1.0
            settled = cohort.outcomes.flush()
            for arm in cohort.arms:
                arm.settle(settled)
            return
        examples = block.examples
        if not len(examples):
            cohort.after, cohort.read = block.after, block.read
            return
        settled = cohort.outcomes.offer(examples)
        closed = {arm: arm.losses.closed for arm in cohort.arms}
        if self._remote is not None:
            self._remote.step((cohort.after, cohort.arms), examples, settled)
        else:
            for arm in cohort.arms:
                arm.step(examples, settled)
        self._run.steps += len(examples) * len(cohort.arms)
        cohort.examples += len(examples)
        cohort.event_ms = max(cohort.event_ms, int(examples.event_ms.max(initial=0)))
        cohort.after, cohort.read = block.after, block.read
        if cohort.examples >= rung_examples(self._experiment.rungs, cohort.rung):
            self._rank(cohort)
        for arm in [arm for arm in cohort.arms if arm.losses.closed > closed.get(arm, 0)]:
            self._look_at(arm, cohort)

    def _join_cohorts(self) -> None:
        """Join cohorts at one place, and drop empty ones. The control's is the first."""
        kept: list[Cohort] = []
        for cohort in self._run.cohorts:
            same = [other for other in kept if other.after == cohort.after
                    and other.ended == cohort.ended]  # fmt: skip
            if same:
                same[0].arms += cohort.arms
            elif cohort.arms:
                kept.append(cohort)
                continue
            self._reading.pop(id(cohort), None)
        self._run.cohorts = kept

    def _begin_arms(self) -> None:
        """Begin arms in free slots, with the first example of the log."""
        run, experiment = self._run, self._experiment
        learning = sum(len(cohort.arms) for cohort in run.cohorts)
        plans: list[ArmPlan] = []
        while (
            run.begun < experiment.arms
            and learning + len(plans) < experiment.slots + 1
            and (run.begun < 0 or self._may_begin())
        ):
            run.begun += 1
            listed = run.begun <= len(experiment.listed)
            suggestions = None if listed else run.suggestions
            suggested = suggestions.ask(run.begun) if suggestions is not None else None
            plans.append(experiment.plan(run.begun, suggested))
        if not plans:
            return
        cohort = Cohort(experiment)
        fields, remote = experiment.control.fields, self._remote is not None
        cohort.arms = [Arm(plan, fields, remote=remote) for plan in plans]
        run.cohorts.append(cohort)
        self._folder.append(
            [
                ArmRecord(BEGUN, plan.number, plan.name, settings=dict(plan.settings))
                for plan in plans
            ]
        )

    # ------------------------------------------------------------------------- rungs and looks

    def _rank(self, cohort: Cohort) -> None:
        """Compare the arms of a cohort at a rung, and stop those that are not among the best."""
        run, rung = self._run, cohort.rung
        cohort.rung += 1
        control = next((arm for arm in cohort.arms if arm.plan.number == _CONTROL), None)
        if control is not None:
            run.control_at_rungs.append(control.pieces.sums)
        arms = [arm for arm in cohort.arms if arm is not control]
        before = run.control_at_rungs[rung]
        compared = {arm.plan.number: compared_arm(arm.pieces.sums, before) for arm in arms}
        placements = run.rungs.arrive(rung, compared)
        records = []
        for arm in arms:
            placement, value = placements[arm.plan.number], compared[arm.plan.number].mean
            kind = RUNG if placement.kept else STOPPED
            reason = _place(placement, cohort)
            records.append(self._record(kind, arm, cohort, reason, difference=value))
            if not placement.kept:
                self._end(arm, cohort)
        self._folder.append(records)

    def _look_at(self, arm: Arm, cohort: Cohort) -> None:
        """Decide about an arm after a batch of event time."""
        if arm.plan.number == _CONTROL:
            return
        found = self._look(arm)
        self._tell_found(SCORED, arm, cohort, found)
        if found.verdict is ArmVerdict.ELIMINATED:
            self._tell_found(ELIMINATED, arm, cohort, found)
            self._end(arm, cohort)
        elif found.verdict is ArmVerdict.BETTER and not arm.found_better:
            arm.found_better = True
            self._tell_found(BETTER, arm, cohort, found)

    def _look(self, arm: Arm) -> Look:
        sums, weights = paired(arm.losses, self._control.losses)
        return look(sums, weights, sums.shape[0], self._experiment.rules)

    @property
    def _control(self) -> Arm:
        return self._run.cohorts[0].arms[0]

    def _end(self, arm: Arm, cohort: Cohort) -> None:
        cohort.arms.remove(arm)
        difference = self._difference(arm)
        self._run.ended.append(EndedArm(arm.examples, difference, arm.plan.number))
        suggestions = self._run.suggestions
        if suggestions is not None and arm.plan.number > len(self._experiment.listed):
            suggestions.tell(arm.plan.number, arm.examples, difference)

    def _difference(self, arm: Arm) -> float:
        """Return the mean paired difference of all batches that are closed for the arm."""
        sums, weights = paired(arm.losses, self._control.losses)
        return float(sums.sum() / weights.sum()) if weights.sum() else float("nan")

    def _tell_found(self, kind: str, arm: Arm, cohort: Cohort, found: Look) -> None:
        bounds, difference = (found.low, found.high), found.difference
        self._folder.append(
            [self._record(kind, arm, cohort, found.reason, difference=difference, bounds=bounds)]
        )

    def _record(
        self,
        kind: str,
        arm: Arm,
        cohort: Cohort,
        reason: str,
        *,
        difference: float,
        bounds: tuple[float, float] | None = None,
    ) -> ArmRecord:
        low, high = bounds or (None, None)
        return ArmRecord(
            kind=kind,
            arm=arm.plan.number,
            name=arm.plan.name,
            examples=arm.examples,
            event_ms=cohort.event_ms,
            settings=dict(arm.plan.settings),
            loss=_finite(arm.losses.mean),
            difference=_finite(difference),
            low=_finite(low),
            high=_finite(high),
            reason=reason,
        )

    # --------------------------------------------------------------------------------- the end

    def _finish(self) -> ExperimentResult:
        """Record the arms that reached the end; return the best of them."""
        control = self._control
        [cohort] = self._run.cohorts
        differences = {arm: arm.losses.mean - control.losses.mean for arm in cohort.arms}
        ranked = sorted(cohort.arms, key=lambda arm: (differences[arm], arm.plan.number))
        records = []
        for rank, arm in enumerate(ranked, 1):
            found = self._look(arm)
            reason = f"rank {rank} of {len(ranked)} at the end of the log; {found.reason}"
            if arm is control:
                reason = f"rank {rank} of {len(ranked)} at the end of the log"
            bounds, difference = (found.low, found.high), differences[arm]
            records.append(
                self._record(ENDED, arm, cohort, reason, difference=difference, bounds=bounds)
            )
            if arm is not control:
                self._run.ended.append(EndedArm(arm.examples, difference, arm.plan.number))
        self._folder.append(records)
        best = ranked[0]
        return ExperimentResult(
            best=best.plan,
            loss=best.losses.mean,
            difference=differences[best],
            promotable=best.found_better,
            control_loss=control.losses.mean,
            steps=self._run.steps,
            examples=cohort.examples,
        )

    def _progress(self) -> ExperimentProgress:
        run = self._run
        learning = sum(len(cohort.arms) for cohort in run.cohorts)
        return ExperimentProgress(run.cohorts[0].read, run.begun, learning - 1, run.steps)

    @property
    def position(self) -> object:
        """The place of the control, which no arm has passed."""
        return self._run.cohorts[0].after

    def kept(self, first: Any) -> Any:
        """Return what the source wants saved with the state; `first` if it has nothing yet."""
        self._run.kept = self._run.kept or first
        return self._run.kept

    def keep(self, kept: Any) -> None:
        """Replace what the source wants saved."""
        self._run.kept = kept

    def save(self) -> None:
        """Save the state, between two steps."""
        self._saved_steps = self._run.steps
        self._folder.save(self._experiment.fingerprint, self._source.identity, self._run)
        if self._remote is not None:
            done = self._run.result is not None
            learning = [(each.after, each.arms) for each in self._run.cohorts if not done]
            self._remote.clean(learning, self._run.ended)

    def _places(self, first: Cohort) -> list[tuple[object, list[Arm]]]:
        """Return the cohorts that learn, `first` before the others."""
        cohorts = [each for each in self._run.cohorts if not each.ended]
        cohorts.sort(key=lambda each: each is not first)
        return [(each.after, each.arms) for each in cohorts]


def _place(placement: Placement, cohort: Cohort) -> str:
    close = ", within the error" if placement.close else ""
    return (
        f"rank {placement.rank} of {placement.of} at {counted(cohort.examples, 'example')}{close}"
    )


def _finite(value: float | None) -> float | None:
    """Return a number, or None for a missing, NaN or infinite one."""
    return value if value is not None and abs(value) < float("inf") else None
