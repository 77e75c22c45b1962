"""The search of an experiment, judged against running every arm to the end.

`search_regret` is the log loss of the chosen arm, divided by that of the best arm, minus 1. Both
are means over the whole log, of scores made before learning. `search_budget_share` is the number of
examples that the search learned with all arms and the control, divided by those of whole runs of
all arms. Whole runs are repeated one after another, so that 64 models need the memory of one.

The log is the sample week where it exists. With --quick, it is a generated log of 40,000 examples
with 16 arms.
"""

import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from headrace.deploy.models.shipped import path_of
from headrace.ingest.examples.batch import Examples
from headrace.learner.batch.event_source import EventLogSource
from headrace.learner.batch.sources import ExampleBlock, FilePosition
from headrace.learner.experiments.arm import Arm
from headrace.learner.experiments.experiment_file import Experiment, load_experiment
from headrace.learner.experiments.history import ArmRecord
from headrace.learner.experiments.losses import OutcomeJoin
from headrace.learner.experiments.run_folder import RunFolder, read_history
from headrace.learner.experiments.runner import ExperimentRunner
from tests.bench.ebnerd.week import WEEK
from tests.bench.learner.stream import LR, batches_of, make_stream, stream_spec

SPACE = """
[space]
optimizer.alpha = { log = [0.01, 1.0] }
optimizer.l2 = { range = [0.0, 10.0] }
model.architecture = ["logistic_regression", "factorization_machine"]
model.dimensions = { list = [4, 8], if = { "model.architecture" = "factorization_machine" } }
"""
WEEK_SPACE = SPACE + 'fields.user_device = ["on", "off"]\nfields.article_hour = ["on", "off"]\n'
HEAD = """
[experiment]
name = "search"
control = "control.toml"
arms = {arms}
slots = {arms}
seed = {seed}
"""
RUNGS = "[rungs]\nfirst = {first}\nfactor = 4\n"
WEEK_ARMS, WEEK_FIRST = 64, 5000
QUICK_ARMS, QUICK_FIRST, QUICK_EXAMPLES = 16, 1000, 40_000


class SearchFigures(NamedTuple):
    """The result of a search beside that of whole runs."""

    regret: float
    """Relative: 0.001 is 0.1 % of the log loss."""
    budget_share: float
    arms: int
    examples: int
    chosen_loss: float
    best_loss: float


class BlockLog:
    """A log in memory."""

    identity = "memory"
    marks: Mapping[str, int] = {}
    refused = 0

    def __init__(self, blocks: Sequence[Examples]) -> None:
        self._blocks = blocks

    def count(self) -> None:
        """Blocks are counted."""

    def blocks(self, after: FilePosition) -> Iterator[ExampleBlock]:
        """Yield the blocks behind a place."""
        for place, examples in enumerate(self._blocks[after.block :], after.block + 1):
            yield ExampleBlock(examples, FilePosition(0, place), place / len(self._blocks))


def search(*, quick: bool, seed: int = 1) -> SearchFigures | None:
    """Run the search and all arms; None without the sample week. seed: of the drawn arms."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        if quick:
            spec = stream_spec("", name="control", more=LR)
            file = HEAD.format(arms=QUICK_ARMS, seed=seed) + SPACE + RUNGS.format(first=QUICK_FIRST)
            blocks = batches_of(spec, make_stream(QUICK_EXAMPLES, 1), 1000)
            return judged(written(path, spec.text, file), blocks, path)
        if not WEEK.is_dir():
            return None
        file = HEAD.format(arms=WEEK_ARMS, seed=seed) + WEEK_SPACE + RUNGS.format(first=WEEK_FIRST)
        experiment = written(path, path_of("news").read_text(), file)
        source = EventLogSource([WEEK], experiment.control)
        blocks = [block.examples for block in source.blocks(FilePosition())]
        return judged(experiment, blocks, path)


def judged(experiment: Experiment, blocks: Sequence[Examples], folder: Path) -> SearchFigures:
    """Search, then run every arm to the end."""
    held = RunFolder(folder / "run")
    runner = ExperimentRunner(experiment, BlockLog(blocks), held, save_every_s=1e9)
    found = runner.run(threading.Event(), lambda _: None)
    held.close()
    assert found is not None
    begun = [each for each in read_history(folder / "run") if each.kind == "begun"]
    losses = {each.arm: whole_loss(experiment, each, blocks) for each in begun}
    best, chosen = min(losses.values()), losses[found.best.number]
    whole = (len(losses) - 1) * found.examples
    return SearchFigures(
        chosen / best - 1.0, found.steps / whole, len(losses) - 1, found.examples, chosen, best
    )


def whole_loss(experiment: Experiment, record: ArmRecord, blocks: Sequence[Examples]) -> float:
    """Return the mean log loss of one arm over the whole log."""
    arm = Arm(experiment.plan(record.arm, record.settings), experiment.control.fields)
    label, rules = experiment.control.fields.label, experiment.rules
    outcomes = OutcomeJoin(label.window_ms, rules.batch_ms)
    for block in blocks:
        if len(block):
            arm.step(block, outcomes.offer(block))
    arm.settle(outcomes.flush())
    return arm.losses.mean


def written(folder: Path, control: str, file: str) -> Experiment:
    """Write control and experiment file; return the experiment."""
    (folder / "control.toml").write_text(control)
    (folder / "experiment.toml").write_text(file)
    return load_experiment(folder / "experiment.toml")
