"""The work of one task: an arm learns one chunk of the log, from checkpoint to checkpoint."""

import pickle
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.ingest.features.fields import FieldSet
from headrace.learner.experiments.arm import FieldSelection
from headrace.learner.experiments.executors.staged_log import read_chunk, write_durably
from headrace.learner.local.in_memory_model import InMemoryModel
from headrace.learner.spec.model_spec import ModelSpec

BlockScores = list[npt.NDArray[np.float64]]


@dataclass(frozen=True)
class ArmTask:
    """One arm and one chunk. It is pickled."""

    spec: ModelSpec
    given: FieldSet
    """The fields of the staged examples."""
    chunk: Path
    before: Path | None
    """Checkpoint to begin with; None: a new model."""
    after: Path
    """Checkpoint to write."""


def run_arm_task(task: ArmTask) -> BlockScores:
    """Learn the chunk; return the scores of each block. A complete checkpoint is not repeated."""
    if task.after.exists():
        return read_checkpoint_scores(task.after)
    model = InMemoryModel(task.spec) if task.before is None else read_checkpoint_model(task.before)
    select = FieldSelection(task.given, task.spec.fields)
    scores: BlockScores = [
        model.learn(select(examples)) if len(examples) else np.zeros(0)
        for examples, _ in read_chunk(task.chunk).blocks
    ]
    task.after.parent.mkdir(parents=True, exist_ok=True)
    write_durably(task.after, [scores, model])
    return scores


def read_checkpoint_scores(path: Path) -> BlockScores:
    """Return the scores that led to a checkpoint."""
    with path.open("rb") as file:
        scores: BlockScores = pickle.load(file)  # noqa: S301 - written by a task
    return scores


def read_checkpoint_model(path: Path) -> InMemoryModel:
    """Return the model of a checkpoint."""
    with path.open("rb") as file:
        pickle.load(file)  # noqa: S301 - written by a task
        model: InMemoryModel = pickle.load(file)  # noqa: S301 - written by a task
    return model
