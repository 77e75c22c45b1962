"""The guard tells unlearnable batches from suspect ones, and a fault from a change that lasts."""

from dataclasses import replace

import numpy as np
import pytest

from headrace.ingest.examples.batch import Examples
from headrace.ingest.kafka.protocols import Source
from headrace.learner.kernels.pending_deltas import PendingDeltas, view_of
from headrace.learner.loop.guard.batch_guard import (
    BatchGuard,
    MiniBatchGuard,
    Verdict,
    quarantine_letter,
    quarantine_reason,
)
from headrace.learner.loop.guard.stream_change import GuardLimits
from headrace.learner.loop.guard.surprise import Suspect
from headrace.learner.loop.merging import ExampleBatch
from headrace.pserver.store import Shape
from tests.learner.streams import part, random_examples, random_spec

BATCH = 120
NO_SCORES = "expected finite scores"
EXPLODED = "gradients explode"
NO_DELTAS = PendingDeltas(view_of(1), Shape("test", 1, 1, "", ""))
LIMITS = GuardLimits(warm_up_examples=2000)


def _reason(verdict: Verdict | None) -> str:
    return "" if verdict is None else verdict.reason


def _lasting(guard: BatchGuard) -> bool:
    return guard.lasting


def _negatives() -> Examples:
    dice = np.random.default_rng(3)
    spec = random_spec(dice, "window", statistics=False, model="")
    examples = random_examples(dice, spec, BATCH, closed=True)
    return replace(examples, labels=np.zeros(BATCH, np.uint8))


def _at(offset: int, examples: Examples, append_ms: int = 0) -> ExampleBatch:
    timed = replace(examples, append_ms=np.full(len(examples), append_ms, np.int64))
    return ExampleBatch(Source("examples.test", 0), "p", offset, timed)


def _warm(guard: BatchGuard) -> BatchGuard:
    """Return a guard that has seen enough to judge labels."""
    good = np.full(BATCH, 0.001)
    for offset in range(LIMITS.warm_up_examples // BATCH + 1):
        assert guard.judge("warm-up", offset, _negatives(), good, 0.0) is None
    return guard


@pytest.mark.parametrize("examples", [1, 2, 999, 1_000, 1_234_567])
def test_the_dead_letter_of_a_quarantine_gives_its_count_and_its_reason_back(examples: int) -> None:
    reason = "expected finite numbers,\ngot NaN"
    assert quarantine_reason(quarantine_letter(examples, reason)) == (examples, reason)
    assert quarantine_reason(f"batch of {examples} examples held back: {reason}")[0] == examples
    assert quarantine_reason("expected an object, got 7") == (0, "expected an object, got 7")


def test_a_new_process_does_not_judge_labels_before_it_has_learned_enough() -> None:
    wrong = np.full(BATCH, 0.99)
    assert BatchGuard(1000, LIMITS).judge("p", 0, _negatives(), wrong, 0.0) is None
    known = _warm(BatchGuard(1000, LIMITS))
    assert isinstance(known.judge("p", 0, _negatives(), wrong, 0.0), Suspect)


def test_labels_of_a_batch_are_judged_once_scores_and_deltas_each_time() -> None:
    """Read again, it meets a model that knows less: that is not the batch's fault."""
    guard = _warm(BatchGuard(1000, LIMITS))
    good, wrong = np.full(BATCH, 0.001), np.full(BATCH, 0.99)
    for offset in range(100):
        assert guard.judge("p", offset, _negatives(), good, 0.0) is None
    assert guard.judge("p", 99, _negatives(), wrong, 0.0) is None
    assert NO_SCORES in _reason(guard.judge("p", 99, _negatives(), good * np.nan, 0.0))
    assert EXPLODED in _reason(guard.judge("p", 99, _negatives(), good, 1e13))
    assert isinstance(guard.judge("another", 0, _negatives(), wrong, 0.0), Suspect)
    assert isinstance(guard.judge("p", 100, _negatives(), wrong, 0.0), Suspect)


def test_the_alert_after_a_suspicion_ends_after_enough_good_examples() -> None:
    guard = _warm(BatchGuard(1000, LIMITS))
    good, wrong = np.full(BATCH, 0.001), np.full(BATCH, 0.99)
    assert not guard.accepts(_at(0, _negatives()), wrong, NO_DELTAS)
    assert guard.screens("p", 1) and not guard.screens("p", 0)  # read again: judged before
    assert not guard.screen(_at(1, _negatives()), wrong)
    assert isinstance(guard.before("p", 1, _negatives()), Suspect)
    offset = 2
    while guard.alert:
        assert guard.screen(_at(offset, _negatives()), good)
        offset += 1
    assert (offset - 3) * BATCH < LIMITS.calm_examples <= (offset - 2) * BATCH
    assert not guard.screens("p", offset)


def test_a_change_lasts_after_a_minute_of_suspect_batches() -> None:
    guard, wrong = _warm(BatchGuard(1000, LIMITS)), np.full(BATCH, 0.99)
    offset, parked = 0, []
    while not _lasting(guard):
        batch = _at(offset, _negatives(), 1000 * offset)
        if not guard.screen(batch, wrong):
            parked.append((batch.examples, wrong))
        offset += 1
    assert len(parked) == LIMITS.lasting_ms // 1000
    assert not guard.alert and all(guard.reconsider(*each, new_round=False) for each in parked)
    first = offset
    while _lasting(guard):
        assert guard.judge("p", offset, _negatives(), wrong, 0.0) is None
        offset += 1
    learned = (offset - first) * BATCH
    assert LIMITS.warm_up_examples <= learned < LIMITS.warm_up_examples + BATCH
    assert isinstance(guard.judge("p", offset, _negatives(), wrong, 0.0), Suspect)


def test_a_change_that_fills_the_most_messages_lasts_whatever_its_time() -> None:
    limits = replace(LIMITS, most_parked=5)
    guard, wrong = _warm(BatchGuard(1000, limits)), np.full(BATCH, 0.99)
    found = [guard.screen(_at(offset, _negatives()), wrong) for offset in range(8)]
    assert found == [False] * 5 + [True] * 3


def test_parked_batches_are_found_good_once_the_model_expects_them() -> None:
    guard = _warm(BatchGuard(1000, LIMITS))
    often = replace(_negatives(), labels=np.ones(BATCH, np.uint8))
    before, after = np.full(BATCH, 0.01), np.full(BATCH, 0.9)
    assert guard.judge("p", 0, often, before, 0.0) is not None
    assert not guard.reconsider(often, before, new_round=True)
    assert not guard.reconsider(often, before, new_round=False)
    assert guard.reconsider(often, after, new_round=False)
    guard.skip_on_reread("p", 0, Suspect("test"))
    guard.learn_on_reread("p", 0)
    assert guard.before("p", 0, often) is None


def test_small_parked_batches_of_a_round_are_judged_together_beside_live_ones() -> None:
    """Two labels prove nothing, twelve of the same kind do."""
    guard = _warm(BatchGuard(1000, LIMITS))
    few = replace(part(_negatives(), 0, 2), labels=np.ones(2, np.uint8))
    scores = np.full(2, 0.05)
    found = []
    for offset in range(6):
        found.append(guard.reconsider(few, scores, new_round=not offset))
        assert guard.judge("p", offset, _negatives(), np.full(BATCH, 0.001), 0.0) is None
    assert found == sorted(found, reverse=True) and found[0] and not found[-1]
    assert guard.reconsider(few, scores, new_round=True)


def test_a_group_learns_one_suspect_batch_and_is_on_the_alert_for_the_next() -> None:
    guard = _warm(MiniBatchGuard(1000, LIMITS))
    bad = replace(_negatives(), labels=np.ones(BATCH, np.uint8))
    scores = np.full(BATCH, 0.01)
    assert guard.accepts(_at(0, _negatives()), scores, NO_DELTAS) and not guard.alert
    assert guard.accepts(_at(1, bad), scores, NO_DELTAS) and guard.screens("p", 2)
    assert not guard.screen(_at(2, bad), scores)
    assert isinstance(guard.before("p", 2, bad), Suspect)
    assert guard.screen(_at(3, _negatives()), scores)
