"""A small experiment over a log in memory, for tests of the runner."""

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from headrace.ingest.examples.batch import Examples
from headrace.ingest.examples.splitting import part_of
from headrace.ingest.features.fields import Policy
from headrace.learner.batch.sources import BatchSource, ExampleBlock, FilePosition
from headrace.learner.experiments.experiment_file import Experiment, load_experiment
from headrace.learner.experiments.history import ArmRecord, ExperimentProgress, ExperimentResult
from headrace.learner.experiments.run_folder import RunFolder, read_history
from headrace.learner.experiments.runner import ExperimentRunner
from tests.learner.streams import FIELDS, STATISTICS, random_examples

SPEC = FIELDS + STATISTICS + "[optimizer]\nalpha = 0.1\n"
FILE = """
[experiment]
name = "rates"
control = "control.toml"
arms = 7
slots = 4

[arm.slow]
"optimizer.alpha" = 0.001

[arm.fewer]
"fields.tags" = "off"
"fields.price" = "off"

[space]
optimizer.alpha = { log = [0.01, 1.0] }
model.architecture = ["logistic_regression", "factorization_machine"]
model.dimensions = { list = [2, 4], if = { "model.architecture" = "factorization_machine" } }

[rungs]
first = 200
factor = 2

[decision]
batch_s = 60
cycle_s = 600
"""


class ListedBlocks(BatchSource):
    """A log in memory."""

    identity = "memory"

    def __init__(self, blocks: list[Examples]) -> None:
        self._blocks = blocks

    def blocks(self, after: FilePosition) -> Iterator[ExampleBlock]:
        """Yield the blocks behind a place."""
        for place, examples in enumerate(self._blocks[after.block :], after.block + 1):
            yield ExampleBlock(examples, FilePosition(0, place), place / len(self._blocks))


def write_files(folder: Path, file: str = FILE, policy: str = "immediate") -> Experiment:
    """Write control and experiment file; return the experiment."""
    text = SPEC.replace("{policy}", policy).replace("{prior_clicks}", "0.9")
    (folder / "control.toml").write_text(text)
    (folder / "experiment.toml").write_text(file)
    return load_experiment(folder / "experiment.toml")


def log_of(experiment: Experiment, impressions: int = 1500, seed: int = 1) -> ListedBlocks:
    """Return a log of random examples over an hour."""
    dice = np.random.default_rng(seed)
    closed = experiment.control.fields.label.policy is Policy.WINDOW
    examples = random_examples(dice, experiment.control, impressions, closed=closed)
    count = len(examples)
    return ListedBlocks(
        [part_of(examples, begin, min(begin + 50, count)) for begin in range(0, count, 50)]
    )


def run_stopped(
    experiment: Experiment, log: ListedBlocks, folder: Path, stops: list[int]
) -> tuple[ExperimentResult, list[ArmRecord], bytes]:
    """Run to the end, stopped and started again after so many blocks each."""
    for blocks in [*stops, 10**9]:
        held = RunFolder(folder)
        runner = ExperimentRunner(experiment, log, held, save_every_s=1e9)
        stop, done = threading.Event(), 0

        def tell(_: ExperimentProgress, blocks: int = blocks, stop: threading.Event = stop) -> None:
            nonlocal done
            done += 1
            if done >= blocks:
                stop.set()

        result = runner.run(stop, tell)
        held.close()
        if result is not None:
            history = (folder / "history.ndjson").read_bytes()
            return result, read_history(folder), history
    raise AssertionError("the run did not end")
