"""Statistics of rows: taken once, kept for a window, in a bucket independent of their value."""

import numpy as np
import pytest

from headrace.learner.inputs.statistics import (
    StatisticMemory,
    empty_memory,
    keep,
    recall,
    statistic_id,
    with_room,
)
from headrace.learner.models.factory import open_model
from tests.effort import seeds
from tests.learner.streams import BUCKETS, Bench, part, random_examples, random_spec

WINDOW_MS = 1000


def _levels(value: int) -> np.ndarray:
    return np.array([value, -value], np.int16)


def _recalled(memory: StatisticMemory, impression: int) -> list[int] | None:
    levels = np.zeros(2, np.int16)
    return levels.tolist() if recall(memory, np.uint64(impression), levels) else None


def test_levels_are_kept_for_a_window_and_gone_after_two() -> None:
    memory = empty_memory(2)
    keep(memory, np.uint64(1), _levels(1), 5000, WINDOW_MS)
    keep(memory, np.uint64(2), _levels(2), 5999, WINDOW_MS)
    keep(memory, np.uint64(3), _levels(3), 6999, WINDOW_MS)
    assert [_recalled(memory, i) for i in (1, 2, 3)] == [[1, -1], [2, -2], [3, -3]]
    keep(memory, np.uint64(4), _levels(4), 7999, WINDOW_MS)
    assert [_recalled(memory, i) for i in (1, 2, 3, 4)] == [None, None, [3, -3], [4, -4]]


@pytest.mark.parametrize("seed", seeds(3))
def test_a_memory_that_grows_forgets_nothing(seed: int) -> None:
    random = np.random.default_rng(seed)
    memory = empty_memory(2, slots=4)
    impressions = random.integers(0, 2**63, 500)
    impressions[0] = 0  # the hash that would look like an empty slot
    for i, impression in enumerate(impressions):
        memory = with_room(memory, 1)
        keep(memory, np.uint64(impression), _levels(i), 10_000 + i, WINDOW_MS)
    for i, impression in enumerate(impressions):
        assert _recalled(memory, impression) == [i, -i]
    assert _recalled(memory, 2**63 + 1) is None


def test_the_bucket_of_a_statistic_does_not_depend_on_its_value() -> None:
    spec = random_spec(np.random.default_rng(1), "immediate", statistics=True)
    fields = np.arange(1, 5, dtype=np.uint64) * np.uint64(0x1234567812345678)
    for k, statistic in enumerate(spec.statistics):
        ids = {
            int(statistic_id(spec.program, k, np.array([a, b, c, d], np.int16), fields))
            for a in (-3, 5)
            for b in (0, 1)
            for c in (2, 9)
            for d in (-32768, 4)
        }
        assert len({row_id >> 48 for row_id in ids}) == 1
        assert {row_id & 1023 for row_id in ids} == {statistic.number}
        read = [name for name in statistic.cross or ("itself",) if name not in ("item", "size")]
        assert len(ids) == 2 ** len(read)


def test_a_cross_with_a_field_differs_by_the_field() -> None:
    spec = random_spec(np.random.default_rng(1), "immediate", statistics=True)
    levels = np.zeros(4, np.int16)
    crossed = [statistic.name for statistic in spec.statistics].index("crossed_item")
    ids = {
        int(statistic_id(spec.program, crossed, levels, np.array([item, 7, 7, 7], np.uint64)))
        for item in range(100)
    }
    assert len({row_id >> 48 for row_id in ids}) > 90


def test_right_after_a_restart_a_click_still_finds_the_row_of_its_show() -> None:
    """With nothing learned in between, the rows less the own show give the statistics kept."""
    random = np.random.default_rng(4)
    spec = random_spec(random, "immediate", statistics=True)
    examples = random_examples(random, spec, 200, closed=False)
    remembering, restarted = Bench(spec), Bench(spec)
    shows = examples.kinds == 0
    clicked = np.flatnonzero(~shows)[0]
    name = examples.impression_ids[clicked].as_py()
    shown = examples.impression_ids.to_pylist().index(name)
    for bench in (remembering, restarted):
        bench.learn(part(examples, 0, shown + 1))
    restarted.model = open_model(spec, BUCKETS)
    for bench in (remembering, restarted):
        bench.learn(part(examples, clicked, clicked + 1))
    for one, other in zip(remembering.rows(), restarted.rows(), strict=True):
        np.testing.assert_array_equal(one, other)
