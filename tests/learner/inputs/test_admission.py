"""Admission: sightings are never counted too low, and seldom too high; draws repeat themselves."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.learner.inputs.admission import (
    AdmissionGate,
    CountingFilter,
    admits,
    counters_of,
    counting,
    described,
    empty_filter,
    gate_of,
    remembered,
    sighted,
)
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from tests.effort import examples

IDS = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=12).flatmap(
    lambda pool: st.lists(st.sampled_from(pool), min_size=1, max_size=400)
)


def _spec(admission: str) -> ModelSpec:
    fields = "".join(f'[fields.{name}]\nnumber = {k}\ntransform = "id"\n' for k, name in _FIELDS)
    return parse_spec(f'[model]\nname = "m"\n{fields}[admission]\n{admission}', "m.toml")


_FIELDS = ((1, "user"), (2, "item"))


def _gate(admission: str) -> AdmissionGate:
    spec = _spec(admission)
    assert spec.admission is not None
    return counting(gate_of(spec.admission, spec.fields, 16), spec.admission)


def _ids(random: np.random.Generator, count: int) -> np.ndarray:
    return random.integers(0, 2**64, count, np.uint64, endpoint=False)


@settings(max_examples=examples(100), deadline=None)
@given(IDS, st.integers(1, 64), st.integers(1, 8))
def test_a_filter_in_its_first_generation_never_counts_too_low(
    ids: list[int], counters: int, hashes: int
) -> None:
    ageless = empty_filter(counters, hashes, 0.01)._replace(limit=counters + 1)
    seen: Counter[int] = Counter()
    for each in ids:
        seen[each] += 1
        assert sighted(ageless, np.uint64(each)) >= min(seen[each], 255)


@settings(max_examples=examples(100), deadline=None)
@given(IDS, st.integers(1, 64), st.integers(1, 8), st.floats(1e-6, 0.5))
def test_a_filter_that_ages_counts_what_it_saw_in_two_generations(
    ids: list[int], counters: int, hashes: int, false_rate: float
) -> None:
    sketch = empty_filter(counters, hashes, false_rate)
    younger: Counter[int] = Counter()
    older: Counter[int] = Counter()
    for each in ids:
        rotations = int(sketch.state[2])
        younger[each] += 1
        assert sighted(sketch, np.uint64(each)) >= min(younger[each] + older[each], 255)
        if sketch.state[2] > rotations:
            older, younger = younger, Counter()
        in_use = np.count_nonzero(sketch.counters[:, sketch.state[0]])
        assert in_use == sketch.state[1] < sketch.limit


@pytest.mark.parametrize(
    ("hashes", "false_rate"), [(1, 0.1), (2, 0.05), (4, 0.01), (4, 0.2), (8, 0.02)]
)
def test_a_filter_seldom_overcounts_in_an_endless_stream_of_new_ids(
    hashes: int, false_rate: float
) -> None:
    counters = 1 << 14
    sketch = empty_filter(counters, hashes, false_rate)
    ids = _ids(np.random.default_rng(3), 5 * remembered(counters, hashes, false_rate) + 40_000)
    too_high = np.array([sighted(sketch, each) > 1 for each in ids])
    assert sketch.state[2] >= 4
    # the rate is reached where both generations are full: so a window, not the whole stream
    window = max(2000, ids.shape[0] // 20)
    rates = np.convolve(too_high, np.ones(window) / window, "valid")
    assert rates.max() <= false_rate + 4 * math.sqrt(false_rate / window)
    assert rates[len(rates) // 2 :].max() >= false_rate / 4


@pytest.mark.parametrize(("hashes", "false_rate"), [(1, 0.1), (4, 0.01), (8, 0.02)])
def test_a_filter_generation_takes_the_number_of_ids_that_it_promises(
    hashes: int, false_rate: float
) -> None:
    counters = 1 << 16
    sketch = empty_filter(counters, hashes, false_rate)
    taken = 0
    for each in _ids(np.random.default_rng(4), counters):
        sighted(sketch, each)
        taken += 1
        if sketch.state[2]:
            break
    assert taken == pytest.approx(remembered(counters, hashes, false_rate), rel=0.05)


def test_an_id_gets_its_row_at_the_sighting_of_the_spec() -> None:
    for sightings in (2, 5, 250):
        gate = _gate(f'kind = "count"\nsightings = {sightings}\nfilter_mb = 1')
        for each in _ids(np.random.default_rng(sightings), 5):
            decided = [admits(gate, each, np.uint64(0)) for _ in range(sightings + 300)]
            assert decided.index(True) == sightings - 1
            assert all(decided[sightings:])


def test_an_admission_draw_depends_on_impression_and_id_and_repeats() -> None:
    gate = _gate('kind = "probability"\nprobability = 0.1')
    random = np.random.default_rng(5)
    ids, impressions = _ids(random, 300), _ids(random, 300)
    decided = np.array([[admits(gate, i, j) for j in impressions] for i in ids])
    assert decided.mean() == pytest.approx(0.1, abs=4 * math.sqrt(0.09 / decided.size))
    # no id and no impression that is always lucky
    assert max(decided.mean(axis=0).max(), decided.mean(axis=1).max()) < 0.2
    again = np.array([[admits(gate, i, j) for j in impressions] for i in ids])
    np.testing.assert_array_equal(decided, again)


def test_an_admission_filter_takes_no_more_memory_than_its_spec_allows() -> None:
    spec = _spec('kind = "count"\nsightings = 2\nfilter_mb = 3')
    assert spec.admission is not None
    gate = gate_of(spec.admission, spec.fields, 16)
    assert gate.filter.counters.nbytes == 0  # who only predicts pays nothing
    made: CountingFilter = counting(gate, spec.admission).filter
    assert made.counters.nbytes == 3 << 20
    assert made.counters.shape[0] == counters_of(spec.admission)


def test_the_log_line_of_an_admission_says_its_rule_and_memory() -> None:
    spec = _spec('kind = "count"\nsightings = 3')
    assert spec.admission is not None
    told = described(spec.admission)
    assert "ids of user, item get a row at sighting 3" in told
    assert "filter of 64 MiB" in told
    ids = remembered(counters_of(spec.admission), 4, 0.01)
    assert ids == pytest.approx(2.59e6, rel=0.01)
    assert f"last {ids:,} to {2 * ids:,} ids" in told
    drawn = _spec('kind = "probability"\nprobability = 0.25\nfields = ["item"]').admission
    assert drawn is not None
    assert described(drawn) == "ids of item get a row with probability 0.25 at each sighting"
