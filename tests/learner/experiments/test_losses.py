"""Outcomes and losses: each impression is settled once, with the label of a window."""

import numpy as np
import pyarrow as pa
import pytest

from headrace.ingest.examples.batch import Examples, Kind
from headrace.ingest.examples.splitting import part_of
from headrace.ingest.features.encoder import Encoded
from headrace.learner.experiments.losses import (
    LossPieces,
    LossTable,
    OutcomeJoin,
    Settled,
    cells_of,
    loss_sums,
    paired,
)
from tests.effort import seeds

WINDOW_MS, BATCH_MS = 1000, 500
START_MS = 1_700_000_000_000


def stream(seed: int, impressions: int = 400) -> tuple[Examples, np.ndarray]:
    """Impressions and clicks in order of time, and the label of each impression."""
    dice = np.random.default_rng(seed)
    shown = START_MS + np.sort(dice.integers(0, 20_000, impressions))
    clicked = np.flatnonzero(dice.random(impressions) < 0.3)
    delays = dice.integers(0, WINDOW_MS + 1, clicked.shape[0])
    which = np.concatenate((np.arange(impressions), clicked))
    kinds = np.repeat([Kind.SHOWN, Kind.CLICKED], [impressions, clicked.shape[0]]).astype(np.uint8)
    times = np.concatenate((shown, shown[clicked] + delays))
    order = np.lexsort((kinds, times))
    which, kinds, times = which[order], kinds[order], times[order]
    count = which.shape[0]
    nothing = Encoded(
        np.zeros((count, 0), np.uint64),
        np.zeros(0, np.uint64),
        np.zeros(1, np.int32),
        np.zeros((count, 0), np.float32),
    )
    ids = pa.array([f"i{each}" for each in which.tolist()], pa.string())
    labels = np.zeros(impressions, np.uint8)
    labels[clicked] = 1
    examples = Examples(
        fingerprint="",
        watermark_ms=int(times.max()),
        kinds=kinds,
        labels=(kinds == Kind.CLICKED).astype(np.uint8),
        event_ms=times,
        shown_ms=shown[which],
        append_ms=times,
        impression_ids=ids,
        request_ids=pa.nulls(count, pa.string()),
        features=nothing,
        slices={},
    )
    return examples, labels


@pytest.mark.parametrize("seed", seeds(4))
@pytest.mark.parametrize("block", [1, 7, 100, 1000])
def test_each_impression_is_settled_once_with_its_outcome(seed: int, block: int) -> None:
    examples, labels = stream(seed)
    join, settled = OutcomeJoin(WINDOW_MS, BATCH_MS), []
    for begin in range(0, len(examples), block):
        settled += join.offer(part_of(examples, begin, min(begin + block, len(examples))))
    settled += join.flush()
    np.testing.assert_array_equal(np.concatenate([each.labels for each in settled]), labels)
    batches = np.concatenate([each.batches for each in settled])
    shown = examples.shown_ms[examples.kinds == Kind.SHOWN]
    np.testing.assert_array_equal(batches, shown // BATCH_MS)


def test_an_impression_settles_only_after_its_window() -> None:
    examples, _ = stream(1)
    join, shown_ms, waiting = OutcomeJoin(WINDOW_MS, BATCH_MS), [], 0
    for begin in range(len(examples)):
        one = part_of(examples, begin, begin + 1)
        shown_ms += one.shown_ms[one.kinds == Kind.SHOWN].tolist()
        settled = sum(each.labels.shape[0] for each in join.offer(one))
        if settled:
            assert shown_ms[waiting + settled - 1] < one.event_ms[0] - WINDOW_MS
        waiting += settled


def settled(batches: list[int], labels: list[int]) -> Settled:
    return Settled(np.array(labels, np.uint8), np.ones(len(batches)), np.array(batches, np.int64))


def add(table: LossTable, block: Settled, scores: np.ndarray) -> None:
    table.add_sums(block, loss_sums(block, scores))


@pytest.mark.parametrize("ahead", ["arm", "control"])
def test_a_batch_counts_when_both_the_arm_and_the_control_have_closed_it(ahead: str) -> None:
    tables = {"arm": LossTable(), "control": LossTable()}
    for table in tables.values():
        add(table, settled([7, 8], [1, 0]), np.array([0.5, 0.5]))
    add(tables[ahead], settled([8, 9, 10], [1, 0, 1]), np.array([0.5, 0.5, 0.5]))
    sums, weights = paired(tables["arm"], tables["control"])
    np.testing.assert_array_equal(sums, [0.0])
    np.testing.assert_array_equal(weights, [1.0])


def test_an_impression_that_comes_late_counts_in_the_newest_batch() -> None:
    examples, _ = stream(2, 20)
    join = OutcomeJoin(WINDOW_MS, BATCH_MS)
    later = part_of(examples, 10, 20)
    first = [*join.offer(later), *join.offer(part_of(examples, 0, 10)), *join.flush()]
    batches = np.concatenate([each.batches for each in first])
    assert (np.diff(batches) >= 0).all()


def test_losses_do_not_depend_on_the_blocks() -> None:
    dice = np.random.default_rng(1)
    batches, labels = np.sort(dice.integers(0, 9, 200)), dice.integers(0, 2, 200)
    scores = dice.random(200)
    whole, parts = LossTable(), LossTable()
    add(whole, settled(batches.tolist(), labels.tolist()), scores)
    for begin in range(0, 200, 30):
        part = slice(begin, begin + 30)
        add(parts, settled(batches[part].tolist(), labels[part].tolist()), scores[part])
    np.testing.assert_allclose(whole.sums(9)[0], parts.sums(9)[0])
    np.testing.assert_array_equal(whole.sums(9)[1], parts.sums(9)[1])


def test_pieces_are_bounded_and_add_up_to_the_losses_by_batch() -> None:
    random = np.random.default_rng(1)
    pieces, table, total, weight = LossPieces(), LossTable(), 0.0, 0.0
    for block in range(400):
        count = int(random.integers(0, 200))
        batches = 2 * block + np.sort(random.integers(0, 2, count))
        labels = random.integers(0, 2, count).astype(np.uint8)
        settled = Settled(labels, random.random(count), batches)
        sums = loss_sums(settled, random.random(count))
        assert sums.shape[0] == len(set(zip(cells_of(settled).tolist(), batches, strict=True)))
        pieces.add(settled, sums)
        table.add_sums(settled, sums)
        total, weight = total + sums.sum(), weight + settled.weights.sum()
    losses, weights = pieces.sums
    assert 64 < losses.shape[0] <= 128
    assert (losses.sum(), weights.sum()) == pytest.approx((total, weight))
    assert table.total == pytest.approx((total, weight))
