"""Rankings of arms at rungs, side by side: by the last stretch or all examples, with the error.

    python -m tests.bench.rung_scores [--quick] [--week] [--seeds N] [--json]
                                      [--arms N] [--factor N]

An arm ranks at a rung by its mean paired difference to the control: over the `stretch` since the
rung before, or over `all` examples since the beginning. With `_error`, an arm also goes on if it is
worse than the last arm within the rank by one standard error at most. Experiments use `all_error`.

All rankings see the same arms. An arm learns on while one of them keeps it. `regret` is the log
loss of the arm that a ranking chooses, divided by that of the best arm that any of them kept, minus
1. `worst` is the greatest of all seeds. `budget_share` is the examples that a ranking's arms and
the control learned, divided by those of whole runs of all arms.

--arms takes the first few arms of each search, and --factor another factor. All of these arms learn
the whole stream then: `regret` is relative to the best of all arms, and `best_stopped` is the share
of the seeds in which a ranking stopped that arm.

The stream is that of `search_rivals`, with another one for each seed; with --week, the sample week
with the 64 arms of `search`, which each seed draws anew. --quick learns a short stream.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headrace.deploy.models.shipped import path_of
from headrace.ingest.examples.batch import Examples
from headrace.ingest.examples.splitting import part_of
from headrace.learner.batch.event_source import EventLogSource
from headrace.learner.batch.sources import FilePosition
from headrace.learner.experiments.arm import Arm
from headrace.learner.experiments.experiment_file import ArmPlan
from headrace.learner.experiments.losses import LossPieces, OutcomeJoin, Reals, Settled
from headrace.learner.experiments.rungs import ComparedArm, PieceSums, Rungs, compared_arm
from headrace.learner.experiments.space import changed_spec
from headrace.learner.spec.model_spec import parse_spec
from tests.bench.ebnerd.week import WEEK
from tests.bench.experiments.rung_rules import Task
from tests.bench.experiments.search import HEAD, RUNGS, WEEK_ARMS, WEEK_FIRST, WEEK_SPACE, written
from tests.bench.experiments.search_rivals import swinging_task

RANKINGS = ("stretch", "all", "stretch_error", "all_error")
_SEEDS, _WEEK_SEEDS, _EXAMPLES, _QUICK_EXAMPLES = 20, 3, 20_000, 8000
_WEEK_BLOCK = 500


class Course(NamedTuple):
    """The arms of one search and its examples."""

    plans: Sequence[ArmPlan]
    """The control first."""
    blocks: Sequence[Examples]
    first: int
    factor: int
    batch_ms: int


class Ranked(NamedTuple):
    """The result of one ranking."""

    name: str
    """Of the chosen arm."""
    loss: float
    budget_share: float
    best_loss: float
    """The best of all arms that learned the whole stream, the control too."""
    best_stopped: bool
    """Whether the ranking stopped the arm with it."""


class _Pieces(LossPieces):
    """Losses since the beginning, and since the last rung."""

    def __init__(self) -> None:
        super().__init__()
        self.stretch = LossPieces()

    def add(self, settled: Settled, sums: Reals) -> None:
        super().add(settled, sums)
        self.stretch.add(settled, sums)


class _Learner:
    """An arm that learns on as long as a ranking keeps it."""

    def __init__(self, plan: ArmPlan, control: ArmPlan) -> None:
        self.arm = Arm(plan, control.spec.fields)
        self.examples = self._begin = 0
        self._pieces = self.arm.pieces = _Pieces()
        self._last: dict[str, PieceSums] = {}

    def learn(self, blocks: Sequence[Examples], settled: Sequence[list[Settled]]) -> None:
        """Learn up to the end of `blocks`, and begin another stretch."""
        for place in range(self._begin, len(blocks)):
            self.arm.step(blocks[place], settled[place])
            self.examples += len(blocks[place])
        self._begin = len(blocks)
        self._last = {"stretch": self._pieces.stretch.sums, "all": self._pieces.sums}
        self._pieces.stretch = LossPieces()

    def compared(self, control: _Learner, ranking: str) -> ComparedArm:
        """Return the paired differences by which a ranking compares."""
        over = ranking.partition("_")[0]
        return compared_arm(self._last[over], control._last[over])


def compare(course: Course, *, whole_runs: bool = False) -> dict[str, Ranked]:
    """Return the choice of each ranking. whole_runs: stopped arms learn the whole stream, too."""
    control_plan, *plans = course.plans
    label = control_plan.spec.fields.label
    outcomes = OutcomeJoin(label.window_ms, course.batch_ms)
    settled = [outcomes.offer(block) for block in course.blocks]
    control = _Learner(control_plan, control_plan)
    arms = {plan.number: _Learner(plan, control_plan) for plan in plans}
    kept = {ranking: set(arms) for ranking in RANKINGS}
    steps = dict.fromkeys(RANKINGS, 0)
    reached = np.cumsum([len(block) for block in course.blocks])
    rung, whole = course.first, int(reached[-1])
    while rung <= whole:
        blocks = course.blocks[: int(np.searchsorted(reached, rung)) + 1]
        for each in [control, *(arms[number] for number in set.union(*kept.values()))]:
            each.learn(blocks, settled)
        for ranking in RANKINGS:
            compared = {number: arms[number].compared(control, ranking) for number in kept[ranking]}
            found = Rungs(course.factor).arrive(0, compared)
            if not ranking.endswith("_error"):
                found = {number: each for number, each in found.items() if not each.close}
            on = {number for number, each in found.items() if each.kept}
            steps[ranking] += sum(arms[number].examples for number in kept[ranking] - on)
            kept[ranking] = on
        rung *= course.factor
    ending = set(arms) if whole_runs else set.union(*kept.values())
    ended, last = [control, *(arms[each] for each in ending)], outcomes.flush()
    for each in ended:
        each.learn(course.blocks, settled)
        each.arm.settle(last)
    top = min(ended, key=lambda each: each.arm.losses.mean)
    results = {}
    for ranking in RANKINGS:
        own = [control, *(arms[number] for number in sorted(kept[ranking]))]
        best = min(own, key=lambda each: each.arm.losses.mean)
        share = (steps[ranking] + whole * len(own)) / (whole * len(plans))
        top_loss, stopped = top.arm.losses.mean, top not in own
        results[ranking] = Ranked(
            best.arm.plan.name, best.arm.losses.mean, share, top_loss, stopped
        )
    return results


def swinging_course(examples: int, seed: int) -> Course:
    """Return the search of `search_rivals`."""
    return course_of(swinging_task(examples, seed))


def fewer(course: Course, arms: int | None, factor: int | None) -> Course:
    """Return the course with its first arms, and with another factor of rungs."""
    plans = course.plans if arms is None else course.plans[: arms + 1]
    return course._replace(plans=plans, factor=factor or course.factor)


def course_of(task: Task) -> Course:
    """Return the arms of a task, in its order."""
    plans = [ArmPlan(0, "control", {}, task.control)]
    for number, rate in enumerate(task.rates, 1):
        text = changed_spec(task.control.text, {"optimizer.alpha": rate}, f"rate{number}")
        plans.append(ArmPlan(number, str(rate), {}, parse_spec(text, "rung_scores.toml")))
    return Course(plans, task.blocks, task.first, task.factor, 3_600_000)


def week_course(seed: int) -> Course:
    """Return the search of `search` over the sample week."""
    file = HEAD.format(arms=WEEK_ARMS, seed=seed) + WEEK_SPACE + RUNGS.format(first=WEEK_FIRST)
    with tempfile.TemporaryDirectory() as folder:
        experiment = written(Path(folder), path_of("news").read_text(), file)
    blocks = []
    for block in EventLogSource([WEEK], experiment.control).blocks(FilePosition()):
        for begin in range(0, len(block.examples), _WEEK_BLOCK):
            end = min(begin + _WEEK_BLOCK, len(block.examples))
            blocks.append(part_of(block.examples, begin, end))
    plans = [experiment.plan(number) for number in range(WEEK_ARMS + 1)]
    rungs, batch_ms = experiment.rungs, experiment.rules.batch_ms
    return Course(plans, blocks, rungs.first, rungs.factor, batch_ms)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description="Rankings of arms at rungs.")
    parser.add_argument("--quick", action="store_true", help="two streams of 8,000 examples")
    parser.add_argument("--week", action="store_true", help="the sample week")
    parser.add_argument("--seeds", type=int, metavar="N")
    parser.add_argument("--arms", type=int, metavar="N", help="first arms of each search")
    parser.add_argument("--factor", type=int, metavar="N", help="factor of the rungs")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.week and not WEEK.is_dir():
        sys.exit(f"expected the sample week in {WEEK}; set HEADRACE_WEEK")
    seeds = options.seeds or (_WEEK_SEEDS if options.week else 2 if options.quick else _SEEDS)
    regrets: dict[str, list[float]] = {ranking: [] for ranking in RANKINGS}
    shares: dict[str, list[float]] = {ranking: [] for ranking in RANKINGS}
    stopped = dict.fromkeys(RANKINGS, 0)
    few = options.arms is not None or options.factor is not None
    for seed in range(1, seeds + 1):
        examples = _QUICK_EXAMPLES if options.quick else _EXAMPLES
        course = week_course(seed) if options.week else swinging_course(examples, seed)
        found = compare(fewer(course, options.arms, options.factor), whole_runs=few)
        for ranking, each in found.items():
            best = each.best_loss
            stopped[ranking] += each.best_stopped
            regrets[ranking].append(each.loss / best - 1.0)
            shares[ranking].append(each.budget_share)
            print(seed, ranking, each, file=sys.stderr)
    figures = {
        ranking: {
            "regret": round(float(np.mean(regrets[ranking])), 6),
            "worst": round(max(regrets[ranking]), 6),
            "budget_share": round(float(np.mean(shares[ranking])), 4),
            **({"best_stopped": round(stopped[ranking] / seeds, 3)} if few else {}),
        }
        for ranking in RANKINGS
    }
    if options.json:
        stream = "week" if options.week else "swinging"
        print(json.dumps({"stream": stream, "seeds": seeds} | figures))
        return
    for ranking, row in figures.items():
        shown = "  ".join(f"{name} {value:.4%}" for name, value in row.items())
        print(f"{ranking:14} {shown}")


if __name__ == "__main__":
    main()
