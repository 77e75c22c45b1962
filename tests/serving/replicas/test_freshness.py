"""Freshness: a click arrives once every bucket covers its offset, and counts once."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pserver.rows.deltas import EntryHeader, SourceReached
from headrace.serving.replicas import freshness
from headrace.serving.replicas.freshness import FreshnessTracker


def header(
    stop: int, clicks: list[tuple[int, int]] | None = None, source: str = "t/0", append_ms: int = 1
) -> EntryHeader:
    return EntryHeader(
        2, 0, 0, append_ms, [SourceReached(source, 0, stop, append_ms, clicks or [])]
    )


def test_a_click_that_another_learner_reads_again_counts_once() -> None:
    follows = FreshnessTracker(2)
    follows.folded(0, header(8, [(7, 1_000)]))
    follows.folded(1, header(8, [(7, 1_000)]))
    assert follows.arrived(1_400) == [400]
    follows.folded(0, header(9, [(7, 1_000), (8, 1_300)]))
    follows.folded(1, header(9))
    assert follows.arrived(1_500) == [200]


def test_a_click_in_a_copied_log_does_not_count() -> None:
    follows = FreshnessTracker(1)
    follows.copied(0, 1_000, {"t/0": 8})
    assert follows.arrived(9_000) == []
    assert follows.summary().count == 0
    follows.folded(0, header(9, [(7, 1_000)]))  # told again by who read it again
    assert follows.arrived(9_000) == []
    assert follows.ages() == (1_000, 1_000)


def test_a_copy_of_a_bucket_past_a_waiting_click_lets_the_click_arrive() -> None:
    follows = FreshnessTracker(2)
    follows.folded(0, header(8, [(7, 1_000)]))
    follows.copied(1, 1_000, {"t/0": 8})
    assert follows.arrived(1_300) == [300]


def test_a_new_copy_of_a_bucket_resets_the_offset_it_had_reached() -> None:
    follows = FreshnessTracker(2)
    follows.folded(1, header(8))
    follows.copied(1, 0, {})  # a failover rewrote its history
    follows.folded(0, header(8, [(7, 1_000)]))
    assert follows.arrived(1_100) == []
    follows.folded(1, header(8))
    assert follows.arrived(1_900) == [900]


def test_an_append_time_ahead_of_the_clock_gives_zero_freshness() -> None:
    follows = FreshnessTracker(1)
    follows.folded(0, header(8, [(7, 1_000)]))
    assert follows.arrived(990) == [0]


def test_ages_are_those_of_the_freshest_and_the_stalest_bucket() -> None:
    follows = FreshnessTracker(2)
    assert follows.ages() == (None, None)
    follows.folded(0, header(1, append_ms=500))
    assert follows.ages() == (500, None)
    follows.folded(1, header(1, append_ms=300))
    assert follows.ages() == (500, 300)
    follows.folded(1, header(2, append_ms=200))  # another learner, further behind
    assert follows.ages() == (500, 300)


def test_freshness_percentiles_cover_recent_samples_and_the_count_covers_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(freshness, "RECENT", 100)
    follows = FreshnessTracker(1)
    assert follows.summary().p50_ms is None
    for offset in range(1_000):
        follows.folded(0, header(offset + 1, [(offset, 0)]))
        follows.arrived(5_000 if offset < 900 else offset - 899)
    summary = follows.summary()
    assert summary.count == 1_000
    assert summary.p50_ms == pytest.approx(50.5)
    assert summary.p99_ms == pytest.approx(99.01)


def test_waiting_clicks_are_bounded_and_the_oldest_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(freshness, "MOST_WAITING", 3)
    follows = FreshnessTracker(2)
    for offset in range(5):
        follows.folded(0, header(offset + 1, [(offset, 100 * offset)]))
    follows.folded(1, header(5))
    assert follows.arrived(1_000) == [1_000, 900, 800]


@st.composite
def schedules(draw: st.DrawFn) -> tuple[int, list[tuple[int, str, int, list[tuple[int, int]]]]]:
    """Entries of several buckets in an order that each bucket's log allows."""
    buckets = draw(st.integers(1, 4))
    left: dict[int, list[tuple[int, str, int, list[tuple[int, int]]]]] = {
        bucket: [] for bucket in range(buckets)
    }
    for source in draw(st.sampled_from((("a/0",), ("a/0", "a/1")))):
        stop = 0
        for _ in range(draw(st.integers(0, 6))):
            start, stop = stop, stop + draw(st.integers(1, 3))
            clicks = draw(st.lists(st.tuples(st.integers(start, stop - 1), st.integers(0, 50))))
            teller = draw(st.integers(0, buckets - 1))
            for bucket in range(buckets):
                left[bucket].append((bucket, source, stop, clicks if bucket == teller else []))
    ordered = []
    while remaining := [bucket for bucket in range(buckets) if left[bucket]]:
        ordered.append(left[draw(st.sampled_from(remaining))].pop(0))
    return buckets, ordered


@given(schedules())
def test_a_click_counts_once_when_the_last_bucket_covers_it_in_any_order(
    schedule: tuple[int, list[tuple[int, str, int, list[tuple[int, int]]]]],
) -> None:
    buckets, entries = schedule
    follows = FreshnessTracker(buckets)
    stops: dict[tuple[str, int], int] = {}
    told: list[tuple[str, int, int]] = []
    expected: list[int] = []
    found: list[int] = []
    for step, (bucket, source, stop, clicks) in enumerate(entries):
        now = 1_000 + step
        follows.folded(bucket, header(stop, clicks, source))
        stops[source, bucket] = stop
        told += [(source, offset, appended) for offset, appended in clicks]
        covered = {
            each: min(stops.get((each, other), 0) for other in range(buckets)) for each, *_ in told
        }
        here = [each for each in told if each[1] < covered[each[0]]]
        told = [each for each in told if each not in here]
        expected += [now - appended for _, _, appended in here]
        found += follows.arrived(now)
        assert sorted(found) == sorted(expected)
    assert told == []  # every bucket has covered every round by the end
    summary = follows.summary()
    assert summary.count == len(expected)
    assert not expected or summary.p99_ms is not None
    assert not expected or min(expected) <= (summary.p50_ms or math.nan) <= max(expected)
