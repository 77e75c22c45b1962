"""Attempts at one staged file count each row once, however they end and overlap."""

import random
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from headrace.ingest.examples.batch import Examples
from headrace.ingest.kafka.protocols import AtEnd, PartitionAssigned, Record, Source
from headrace.learner.batch.store_fit.staged_file import (
    StagedFileLearner,
    StagedFileReader,
    StagedPlace,
    staged_places,
)
from headrace.learner.loop.pacing import LearnerPacing, PushInterval
from headrace.learner.spec.model_spec import ModelSpec
from headrace.pserver.keeper.bucket_lease import FoldPolicy
from tests.effort import LONG, seeds
from tests.learner.batch.staged_files import counters, one_pass, write
from tests.learner.in_memory import InMemoryModel
from tests.learner.streams import part, random_examples, random_spec

FILES, ROWS, BATCH = 3, 400, 20
EVERY_BATCH = LearnerPacing(staleness=PushInterval(examples=1))


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    return random_spec(np.random.default_rng(4), "window", False)


@pytest.fixture(scope="module")
def examples(spec: ModelSpec) -> Examples:
    return random_examples(np.random.default_rng(9), spec, FILES * ROWS, closed=True)


@pytest.fixture
def places(tmp_path: Path, examples: Examples) -> list[StagedPlace]:
    urls = [
        write(tmp_path / f"part-{k}.parquet", part(examples, k * ROWS, (k + 1) * ROWS))
        for k in range(FILES)
    ]
    return staged_places(urls, "job")


def attempt(model: InMemoryModel, place: StagedPlace) -> StagedFileLearner:
    return StagedFileLearner(model.store, model.spec, place, EVERY_BATCH, model.clocks)


def marks_of(model: InMemoryModel) -> set[tuple[str, int]]:
    return {(name, mark) for answer in model.answers() for name, mark in answer.marks.items()}


@pytest.mark.parametrize("seed", seeds(12 if LONG else 5))
def test_retries_and_speculative_copies_count_every_row_once(
    seed: int, spec: ModelSpec, examples: Examples, places: list[StagedPlace]
) -> None:
    dice, model = random.Random(seed), InMemoryModel(spec)
    keeper = model.keeper(FoldPolicy())
    running: list[tuple[StagedPlace, StagedFileLearner]] = []
    undone = list(places)
    while undone:
        model.now_ms += dice.choice([1, 20, 400])
        lost = dice.random() < 0.05 and running
        if lost:
            running.pop(dice.randrange(len(running)))  # killed: its memory is gone
        if len(running) < 4 and dice.random() < 0.3:
            place = dice.choice(undone)  # a retry, or a copy beside another attempt
            running.append((place, attempt(model, place)))
        if dice.random() < 0.3:
            keeper.step()
        if running:
            at = dice.randrange(len(running))
            place, learner = running[at]
            if learner.step():
                running.pop(at)
                undone = [each for each in undone if each != place]
    assert marks_of(model) == {(place.source, ROWS) for place in places}, f"seed {seed}"
    assert counters(model.rows()) == one_pass(spec, examples), f"seed {seed}"


def test_a_reader_starts_at_any_batch(places: list[StagedPlace]) -> None:
    reader, source = StagedFileReader(places[1]), Source("job", 1)
    assert reader.poll(0.0) == [PartitionAssigned(source)]
    assert reader.poll(0.0) == []
    reader.start({source: 5 * BATCH})
    found = [event for _ in range(10) for event in reader.poll(0.0)]
    offsets = [event.offset for event in found if isinstance(event, Record)]
    ends: npt.NDArray[np.int64] = np.arange(6 * BATCH, ROWS + 1, BATCH)
    assert offsets == (ends - 1).tolist()
    assert found[-1] == AtEnd(source, ROWS)
    assert sum(isinstance(event, AtEnd) for event in found) == 1
