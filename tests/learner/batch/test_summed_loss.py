"""The loss of a fit of several processes: each row once, in memory that they share."""

import multiprocessing
from dataclasses import replace

import numpy as np
import pytest

from headrace.ingest.kafka.protocols import Source
from headrace.learner.batch.held_out_epochs import add_scores
from headrace.learner.batch.store_fit.staged_file import SummedLoss
from headrace.learner.loop.merging import ExampleBatch
from headrace.learner.validation.log_loss_sum import LogLossSum, SharedLoss
from tests.learner.streams import random_examples, random_spec

LABELS, SCORES = np.array([0, 1, 0], np.uint8), np.array([0.1, 0.8, 0.3])


def add_to_the_second(loss: SharedLoss) -> None:
    """Run by another process."""
    loss.of_file(1).add(LABELS, SCORES)


def test_a_process_adds_to_the_sums_of_the_process_that_started_it() -> None:
    shared, alone = SharedLoss(2), LogLossSum()
    assert np.isnan(shared.total().mean)
    shared.of_file(0).add(LABELS, 1.0 - SCORES)
    process = multiprocessing.get_context("spawn").Process(target=add_to_the_second, args=(shared,))
    process.start()
    process.join()
    assert process.exitcode == 0
    alone.add(np.tile(LABELS, 2), np.concatenate([1.0 - SCORES, SCORES]))
    total = shared.total()
    assert total.mean == pytest.approx(alone.mean)
    assert total.normalized_entropy == pytest.approx(alone.normalized_entropy)


def test_an_example_after_a_wait_has_no_final_label_since_the_others_are_not_known() -> None:
    dice, known, waited = np.random.default_rng(4), LogLossSum(), LogLossSum()
    examples = random_examples(dice, random_spec(dice, "window", False), 10, closed=True)
    scores = np.linspace(0.1, 0.9, len(examples))
    add_scores(known, examples, scores)
    add_scores(waited, replace(examples, event_ms=examples.shown_ms + 2000), scores)
    assert np.isfinite(known.mean)
    assert np.isnan(waited.mean)


def test_a_batch_that_is_learned_again_after_a_refused_push_counts_once() -> None:
    dice = np.random.default_rng(4)
    examples = random_examples(dice, random_spec(dice, "window", False), 10, closed=True)
    scores = np.linspace(0.1, 0.9, len(examples))
    found, alone = LogLossSum(), LogLossSum()
    outputs = SummedLoss(found, 100)
    for last_row, given in ((109, scores), (119, scores), (109, 1.0 - scores), (119, 1.0 - scores)):
        batch = ExampleBatch(Source("job", 0), "job/0", last_row, examples)
        outputs.send_scores(batch, given)
    for _ in range(2):
        add_scores(alone, examples, scores)
    assert found.mean == alone.mean
