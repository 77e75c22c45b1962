"""Ids without a row are learned, predicted and counted in a rare row of field and bucket."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.ingest.examples.batch import Examples, Kind
from headrace.learner.inputs.admission import high_bits
from headrace.learner.kernels.row_ids import rare_id
from headrace.learner.models.logistic import LogisticRegression
from headrace.pserver.rows.deltas import Deletions
from headrace.pserver.rows.table import RowTable
from headrace.pserver.store import Shape
from tests.effort import seeds
from tests.learner.models.model_laws import check_batches_do_not_matter, check_learned_buckets_stay
from tests.learner.models.slow_logistic import SlowLogistic
from tests.learner.row_comparison import assert_same_rows
from tests.learner.streams import (
    BUCKETS,
    COUNT,
    PROBABILITY,
    Bench,
    part,
    random_examples,
    random_spec,
)

KINDS = pytest.mark.parametrize("growth", [COUNT, PROBABILITY], ids=["count", "probability"])
HIGH = high_bits(BUCKETS)


@settings(deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(0, 16))
def test_a_rare_row_has_the_bucket_and_the_field_of_its_ids(row_id: int, exponent: int) -> None:
    shape = Shape("m", 1 << exponent, 2, "", "")
    rare = rare_id(np.uint64(row_id), high_bits(shape.buckets))
    assert int(rare) & 1023 == row_id & 1023
    ids = np.array([row_id, rare], np.uint64)
    assert len(set(shape.bucket_of(ids).tolist())) == 1
    other = row_id ^ 0x0000_3456_789A_BC00  # below the bits of any bucket
    assert rare_id(np.uint64(other), high_bits(shape.buckets)) == rare


@pytest.mark.parametrize(("seed", "policy"), [(0, "immediate"), (1, "window")])
@pytest.mark.parametrize("statistics", [False, True])
@KINDS
def test_rows_and_scores_with_admission_equal_a_slow_reference(
    seed: int, policy: str, statistics: bool, growth: str
) -> None:
    random = np.random.default_rng(seed)
    spec = random_spec(random, policy, statistics, growth)
    examples = random_examples(random, spec, 400, closed=policy == "window")
    bench, slow = Bench(spec), SlowLogistic(spec, BUCKETS)
    check_learned_buckets_stay(bench, examples, random, slow)
    assert_same_rows(bench, slow)
    for mine, view in zip(bench.gained(), bench.rows(), strict=True):
        np.testing.assert_array_equal(mine, view)
    refused = np.count_nonzero(bench.rows().ids == rare_id.py_func(bench.rows().ids, HIGH))
    assert 10 < refused < len(bench.view) / 2  # neither all nor none


@pytest.mark.parametrize("batch", [1, 7])
@KINDS
def test_rows_with_admission_do_not_depend_on_the_batch_size(batch: int, growth: str) -> None:
    random = np.random.default_rng(11)
    spec = random_spec(random, "immediate", statistics=True, growth=growth)
    examples = random_examples(random, spec, 1500, closed=False)
    whole, split = Bench(spec), Bench(spec)
    check_batches_do_not_matter(whole, split, examples, batch)
    assert whole.model.admissions == split.model.admissions


@KINDS
@pytest.mark.parametrize("seed", seeds(3))
def test_a_score_with_admission_is_what_a_server_would_have_answered(
    seed: int, growth: str
) -> None:
    """A server that has every push and every deletion answers bit for bit what is then learned.

    Its table and the learner's hold empty places in different spots: of rows that were deleted, of
    rows that a deletion named and no process had, of rows that the learner only looked up.
    """
    random = np.random.default_rng(seed)
    spec = random_spec(random, "immediate", statistics=True, growth=growth)
    examples = random_examples(random, spec, 400, closed=False)
    bench, server = Bench(spec), RowTable(spec.width)
    answering, empty_places = LogisticRegression(spec, BUCKETS), 0
    for i in range(len(examples)):
        one = part(examples, i, i + 1)
        answered = answering.predict(server, one.features, one.shown_ms)
        score = bench.learn(one)
        if one.kinds[0] == Kind.SHOWN:
            assert score[0] == answered[0], f"seed {seed}, example {i}"
        deltas = bench.gained()
        server.add(deltas)
        bench.pending.refresh(server, deltas.ids, None)
        if i % 20 == 19:
            rows = server.everything()
            going = np.sort(random.choice(rows.ids, 15, replace=False))
            unknown = np.sort(random.integers(0, 2**64, 3, np.uint64))
            coming = np.unique(examples.features.ids[i + 1 : i + 4])
            server.remove(Deletions(going, np.full(15, 2**32 - 1, np.uint32)))
            bench.pending.refresh(server, np.concatenate((going, unknown, coming)), None)
            empty_places += int(np.count_nonzero(bench.view.find(coming) >= 0))
    assert empty_places > 50
    assert min(bench.model.admissions) > 100


@KINDS
def test_a_row_that_was_deleted_is_earned_again(growth: str) -> None:
    random = np.random.default_rng(21)
    spec = random_spec(random, "immediate", statistics=False, growth=growth)
    bench = Bench(spec)
    examples = random_examples(random, spec, 300, closed=False)
    bench.learn(examples)
    numbers = [spec.fields[name].number for name in ("item", "user", "both")]
    mine = np.isin(bench.view.ids & np.uint64(1023), numbers)
    own = mine & (bench.view.ids != rare_id.py_func(bench.view.ids, HIGH))
    assert own.sum() > 40
    gone = bench.view.ids[own].copy()
    bench.gained()
    bench.view.clear(np.flatnonzero(own))
    bench.model = LogisticRegression(spec, BUCKETS)
    bench.learn(part(examples, 0, 2))
    again = bench.view.columns.last_seen[bench.view.find(gone)] > 0
    assert again.sum() <= 4  # an empty place is not a row
    bench.learn(examples)
    again = bench.view.columns.last_seen[bench.view.find(gone)] > 0
    assert again.all() if growth == COUNT else again.sum() > 20


def _shown(examples: Examples, at_s: int, name: str, click_s: int = 0) -> Examples:
    """One example's features, shown at `at_s`; its click at `click_s`, if that is not 0."""
    kind = Kind.CLICKED if click_s else Kind.SHOWN
    one = part(examples, 0, 1)
    return dataclasses.replace(
        one,
        kinds=np.array([kind], np.uint8),
        labels=np.array([1 if click_s else 0], np.uint8),
        event_ms=np.array([1000 * (click_s or at_s)]),
        shown_ms=np.array([1000 * at_s]),
        impression_ids=one.impression_ids.from_pandas([name]),
    )


def test_a_click_counts_where_its_impression_did_and_makes_no_row() -> None:
    random = np.random.default_rng(2)
    growth = '[admission]\nkind = "count"\nsightings = 3\nfilter_mb = 1\nfields = ["item"]\n'
    spec = random_spec(random, "immediate", statistics=False, growth=growth)
    one = random_examples(random, spec, 1, closed=False)
    bench, item = Bench(spec), one.features.ids[0, 0]
    own_and_rare = np.array([item, rare_id(item, HIGH)], np.uint64)

    def counts() -> list[tuple[int, int]]:
        places, columns = bench.view.find(own_and_rare), bench.view.columns
        return [
            (int(columns.shows[place]), int(columns.clicks[place])) if place >= 0 else (0, 0)
            for place in places
        ]

    bench.learn(_shown(one, 100, "a"))
    for click_s in (101, 102, 103):
        bench.learn(_shown(one, 100, "a", click_s))
    assert counts() == [(0, 0), (1, 3)]  # three clicks are no three sightings
    bench.learn(_shown(one, 110, "b"))
    bench.learn(_shown(one, 120, "c"))
    assert counts() == [(1, 0), (2, 3)]
    bench.learn(_shown(one, 110, "b", 130))
    assert counts() == [(1, 0), (2, 4)]  # shown before there was a row
    bench.learn(_shown(one, 120, "c", 131))
    assert counts() == [(1, 1), (2, 4)]
    assert bench.model.admissions == (1, 2)


def test_only_the_fields_that_the_spec_names_have_rare_rows() -> None:
    random = np.random.default_rng(3)
    growth = COUNT + 'fields = ["both", "words"]\n'
    spec = random_spec(random, "immediate", statistics=True, growth=growth)
    examples = random_examples(random, spec, 500, closed=False)
    bench = Bench(spec)
    bench.learn(examples)
    rows = bench.rows()
    rare = rows.ids == rare_id.py_func(rows.ids, HIGH)
    guarded = {spec.fields[name].number for name in ("both", "words")}
    assert set((rows.ids[rare] & np.uint64(1023)).tolist()) == guarded
    both = (rows.ids & np.uint64(1023)) == spec.fields["both"].number
    admitted, refused = bench.model.admissions
    words = (rows.ids & np.uint64(1023)) == spec.fields["words"].number
    assert refused == rows.shows[rare].sum()
    assert admitted >= np.count_nonzero((both | words) & ~rare)


def test_a_model_with_admission_needs_the_number_of_buckets() -> None:
    spec = random_spec(np.random.default_rng(1), "immediate", statistics=False, growth=COUNT)
    with pytest.raises(ValueError, match="expected the number of its buckets"):
        LogisticRegression(spec)
    bench = Bench(spec)
    bench.model = LogisticRegression(spec, 2 * BUCKETS)
    with pytest.raises(ValueError, match="expected 32 buckets, found 16"):
        bench.learn(random_examples(np.random.default_rng(1), spec, 1, closed=False))
