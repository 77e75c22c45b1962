"""Figures by decile, slice and window, compared with plain counting."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.learner.validation.breakdown import (
    ScoredImpressions,
    by_decile,
    by_slice,
    by_window,
    calibration_error,
)
from tests.effort import examples

ROWS = st.lists(
    st.tuples(st.integers(0, 1), st.floats(0.01, 0.99).map(lambda x: round(x, 2))),
    min_size=1,
    max_size=100,
)


def _scored(labels: list[int], scores: list[float], **more: np.ndarray) -> ScoredImpressions:
    columns = {"event_ms": np.arange(len(labels), dtype=np.int64), **more}
    return ScoredImpressions(np.array(labels, np.uint8), np.array(scores), **columns)


@settings(max_examples=examples(100), deadline=None)
@given(ROWS)
def test_bands_cover_all_impressions_and_never_split_equal_scores(
    rows: list[tuple[int, float]],
) -> None:
    labels, scores = (list(column) for column in zip(*rows, strict=True))
    bands = by_decile(_scored(labels, scores))
    assert sum(each.impressions for each in bands) == len(rows)
    assert 1 <= len(bands) <= 10
    clicks = sum(each.impressions * each.clicked for each in bands)
    assert clicks == pytest.approx(sum(labels))
    promised = sum(each.impressions * each.predicted for each in bands)
    assert promised == pytest.approx(sum(scores))
    edges = [edge for each in bands for edge in (each.lowest, each.highest)]
    assert edges == sorted(edges)
    for low, high in itertools.pairwise(bands):
        assert low.highest < high.lowest


def test_a_hundred_impressions_are_ten_bands_of_ten() -> None:
    scores = np.random.default_rng(1).permutation(np.arange(100) / 100)
    labels = (scores >= 0.9).astype(int)
    bands = by_decile(_scored(labels.tolist(), scores.tolist()))
    assert [each.impressions for each in bands] == [10] * 10
    assert [each.clicked for each in bands] == [0.0] * 9 + [1.0]
    assert bands[3].predicted == pytest.approx(0.345)
    assert calibration_error(bands) == pytest.approx(0.406)


@settings(max_examples=examples(100), deadline=None)
@given(ROWS, st.integers(0, 2**32 - 1))
def test_bands_of_weights_are_those_of_as_many_copies(
    rows: list[tuple[int, float]], seed: int
) -> None:
    labels, scores = (list(column) for column in zip(*rows, strict=True))
    weights = np.random.default_rng(seed).integers(1, 100, len(rows))
    scored = _scored(labels, scores, weights=weights.astype(np.float64))
    bands = by_decile(scored)
    each_once = replace(scored, weights=None)
    copies = by_decile(each_once.only(np.repeat(np.arange(len(rows)), weights)))
    for band, copied in zip(bands, copies, strict=True):
        assert (band.lowest, band.highest) == (copied.lowest, copied.highest)
        assert band.weight == copied.weight == copied.impressions
        assert band.predicted == pytest.approx(copied.predicted)
        assert band.clicked == pytest.approx(copied.clicked)
    assert calibration_error(bands) == pytest.approx(calibration_error(copies))


def test_impressions_of_no_weight_make_no_bands() -> None:
    assert by_decile(_scored([0, 1], [0.1, 0.2], weights=np.zeros(2))) == []


def test_slices_have_their_own_figures_the_most_frequent_first() -> None:
    scored = _scored([1, 0, 1, 0, 1], [0.9, 0.1, 0.2, 0.8, 0.5])
    values = pa.array(["good", "good", "bad", "bad", None])
    parts = {part.name: part for part in by_slice(scored, values)}
    assert list(parts) == ["good", "bad", ""]
    assert (parts["good"].figures.auc, parts["bad"].figures.auc) == (1.0, 0.0)
    assert parts[""].impressions == 1
    assert math.isnan(parts[""].figures.auc)
    assert [part.name for part in by_slice(scored, values, most=1)] == ["good"]


def test_windows_slide_over_event_time_whatever_the_order() -> None:
    times = np.array([35, 0, 10, 20, 30], np.int64)
    scored = _scored([0, 1, 0, 1, 1], [0.1, 0.9, 0.2, 0.3, 0.4], event_ms=times)
    found = by_window(scored, length_ms=20, step_ms=10)
    assert [(begin, part.impressions) for begin, part in found] == [(0, 2), (10, 2), (20, 3)]
    assert found[2][1].figures == scored.only(np.array([3, 4, 0])).figures()


def test_a_breakdown_of_no_impressions_is_empty() -> None:
    nothing = _scored([], [])
    assert by_decile(nothing) == []
    assert by_window(nothing, 10, 5) == []
    assert by_slice(nothing, pa.array([], pa.string())) == []
    assert math.isnan(calibration_error([]))
