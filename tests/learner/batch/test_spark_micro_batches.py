"""The number of a micro-batch as an offset: what a model's marks say about it."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from headrace.learner.batch.store_fit.spark_micro_batches import (
    SparkMicroBatch,
    SparkMicroBatchState,
)
from headrace.learner.batch.store_fit.staged_file import (
    STAGED,
    StagedFileLearner,
    StagedPlace,
    staged_places,
)
from headrace.learner.loop.pacing import LearnerPacing, PushInterval
from tests.learner.batch.staged_files import counters, one_pass, write
from tests.learner.in_memory import InMemoryModel
from tests.learner.streams import part, random_examples, random_spec

EVERY_BATCH = LearnerPacing(staleness=PushInterval(examples=1))
ROWS = 120


@pytest.mark.parametrize(
    ("marks", "state"),
    [
        ([{}, {}], SparkMicroBatchState.NEW),
        ([{"log/0": (1 << 32) + 7}, {}], SparkMicroBatchState.NEW),
        ([{"log/0": 2 << 32}, {}], SparkMicroBatchState.NEW),  # a file without rows
        ([{"log/0": 1 << 32}, {"log/1": (2 << 32) + 1}], SparkMicroBatchState.BEGUN),
        ([{"log/0": (3 << 32) + 1}], SparkMicroBatchState.PASSED),
        ([{"other/0": (3 << 32) + 1}], SparkMicroBatchState.NEW),
    ],
)
def test_the_marks_tell_the_state_of_micro_batch_two(
    marks: list[dict[str, int]], state: SparkMicroBatchState
) -> None:
    assert SparkMicroBatch("log", 2).state(marks) is state


def test_repeated_micro_batches_count_every_row_once(tmp_path: Path) -> None:
    spec = random_spec(np.random.default_rng(4), "window", False)
    examples = random_examples(np.random.default_rng(9), spec, 3 * ROWS, closed=True)
    model = InMemoryModel(spec)
    batches: list[list[StagedPlace]] = []
    for number, files in enumerate((2, 1, 3)):
        rows = np.linspace(number * ROWS, (number + 1) * ROWS, files + 1).astype(int).tolist()
        urls = [
            write(tmp_path / f"{number}-{k}.parquet", part(examples, *rows[k : k + 2]))
            for k in range(files)
        ]
        batches.append(staged_places(urls, "log", first=SparkMicroBatch("log", number).first))

    def learn(place: StagedPlace) -> None:
        StagedFileLearner(model.store, spec, place, EVERY_BATCH, model.clocks).run()

    for number, places in enumerate(batches):
        learn(places[-1])
        for place in places:  # a repetition after a kill
            learn(place)
        states = [
            SparkMicroBatch("log", k).state(a.marks for a in model.answers()) for k in range(3)
        ]
        expected = [SparkMicroBatchState.PASSED] * number + [SparkMicroBatchState.BEGUN]
        assert states[: number + 1] == expected
    for place in batches[0]:  # files of an earlier micro-batch
        learn(place)
    assert counters(model.rows()) == one_pass(spec, examples)


def test_a_file_without_rows_between_others_is_complete(tmp_path: Path) -> None:
    spec = random_spec(np.random.default_rng(4), "window", False)
    examples = random_examples(np.random.default_rng(9), spec, ROWS, closed=True)
    model = InMemoryModel(spec)
    halves = {0: part(examples, 0, 60), 2: part(examples, 60, ROWS)}
    pq.write_table(STAGED.empty_table(), tmp_path / "1.parquet")
    for number in range(3):
        url = str(tmp_path / f"{number}.parquet")
        if number in halves:
            write(tmp_path / f"{number}.parquet", halves[number])
        [place] = staged_places([url], "log", first=SparkMicroBatch("log", number).first)
        StagedFileLearner(model.store, spec, place, EVERY_BATCH, model.clocks).run()
    assert counters(model.rows()) == one_pass(spec, examples)
