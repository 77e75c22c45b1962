"""Tests that topics grow under a running joiner without losing or doubling an example."""

import time
from collections import Counter
from collections.abc import Callable

import pytest

from headrace.ingest.errors import MissingTopic, TopicMismatch
from headrace.ingest.examples.batch import Kind
from headrace.ingest.joiner.committed_state import read_state
from headrace.ingest.joiner.partition_growth import (
    OpenWindows,
    await_closed,
    check_growth,
    grow,
    open_windows,
)
from headrace.ingest.kafka.topics import partition_counts, topics_for
from tests.ingest.joiner.joined import Joined
from tests.ingest.keyed_events import identities, labels_of, send_by_key

BEFORE, AFTER = 2, 6
SPEC = """
[fields.article]
number = 1
transform = "id"
[label]
policy = "{policy}"
window_s = {window_s}
"""


@pytest.mark.parametrize("policy", ["immediate", pytest.param("window", marks=pytest.mark.long)])
def test_topics_grow_under_a_joiner_and_every_example_is_made_once(
    policy: str, kafka: str, fresh_name: Callable[[str], str]
) -> None:
    joined = Joined.fresh(kafka, fresh_name, BEFORE, SPEC.format(policy=policy, window_s=15))
    old, new = identities("old", 3_000), identities("new", 3_000)
    slow = old[1::3]
    process = joined.start("")
    reported: list[OpenWindows] = []

    def look() -> OpenWindows:
        return open_windows(joined.settings, [joined], int(time.time() * 1000), joined.topics)

    try:
        send_by_key(joined, shown=old, clicked=old[::3])
        assert not look().closed
        # producers of impressions have stopped; clicks go on in the open windows
        send_by_key(joined, clicked=slow)
        looked = await_closed(look, reported.append)
        assert reported[-1].wait_ms > 0
        growth = grow(joined.settings, [joined.name], AFTER, looked, joined.topics)
        assert growth.arrived == 0
        names = [spec.name for spec in topics_for(joined.name, BEFORE, joined.topics)]
        counts = partition_counts(joined.settings, names)
        assert sorted(counts.values()) == [1, 1, *[AFTER] * 4]
        send_by_key(joined, shown=new)
        send_by_key(joined, clicked=new[::3])
        clicked = {*old[::3], *slow, *new[::3]}

        def done() -> bool:
            state = read_state(joined.settings, joined, joined.topics)
            of_clicks = len(clicked) if policy == "immediate" else 0
            return state.examples >= len(old) + len(new) + of_clicks and not state.lag

        joined.wait(done, process)
    finally:
        process.kill()
        process.wait()
    expected = Counter((identity, 1) for identity in clicked)
    negatives = {*old, *new} if policy == "immediate" else {*old, *new} - clicked
    expected += Counter((identity, 0) for identity in negatives)
    assert labels_of(joined) == expected
    partitions = {partition for partition, *_ in joined.examples()}
    assert partitions == set(range(AFTER))
    end = read_state(joined.settings, joined, joined.topics)
    assert (end.impressions, end.clicks) == (len(old) + len(new), len(clicked))
    assert (end.late_clicks, end.unmatched_clicks, end.duplicates, end.dead_letters) == (0,) * 4


def test_a_growth_without_the_wait_parts_clicks_from_impressions_but_doubles_nothing(
    kafka: str, fresh_name: Callable[[str], str]
) -> None:
    joined = Joined.fresh(kafka, fresh_name, BEFORE, SPEC.format(policy="immediate", window_s=600))
    shown = identities("old", 600)
    process = joined.start("")
    try:
        send_by_key(joined, shown=shown)

        def started() -> bool:  # a joiner that starts during a growth refuses its topics
            state = read_state(joined.settings, joined, joined.topics)
            return state.examples >= len(shown)

        joined.wait(started, process)
        looked = open_windows(joined.settings, [joined], int(time.time() * 1000), joined.topics)
        assert not looked.closed
        grow(joined.settings, [joined.name], AFTER, looked, joined.topics)
        send_by_key(joined, clicked=shown)

        def done() -> bool:
            state = read_state(joined.settings, joined, joined.topics)
            return state.clicks == len(shown) and not state.lag

        joined.wait(done, process)
    finally:
        process.kill()
        process.wait()
    kinds = Counter(kind for _, kind, *_ in joined.examples())
    assert kinds[Kind.SHOWN] == len(shown)
    # two of the six partitions have clicks beside their impressions
    assert 0 < kinds[Kind.CLICKED] < len(shown) // 2
    assert max(labels_of(joined).values()) == 1


def test_an_interrupted_growth_is_completed(kafka: str, fresh_name: Callable[[str], str]) -> None:
    joined = Joined.fresh(kafka, fresh_name, BEFORE, SPEC.format(policy="immediate", window_s=600))
    looked = open_windows(joined.settings, [joined], int(time.time() * 1000), joined.topics)
    assert looked.closed, "no event has arrived yet"
    halfway = grow(joined.settings, [joined.name], AFTER, looked, joined.topics)
    again = grow(joined.settings, [joined.name], AFTER + 1, looked, joined.topics, ["missing"])
    assert len(halfway.grown) == len(again.grown) == 4
    assert grow(joined.settings, [joined.name], AFTER + 1, looked, joined.topics).grown == []


COUNTS = {"impressions": 4, "clicks": 4, "examples.a": 4, "examples.b": 4, "scores.a": 4, "x": 1}


def test_topics_that_agree_may_grow() -> None:
    check_growth(COUNTS, ["a", "b"], 8)
    check_growth(COUNTS, ["a", "b"], 4)
    check_growth(COUNTS | {"examples.a": 8, "clicks": 8}, ["a", "b"], 8)  # interrupted


@pytest.mark.parametrize(
    ("counts", "models", "partitions", "error", "message"),
    [
        pytest.param(COUNTS, "a", 8, TopicMismatch, "got none of b", id="unnamed model"),
        pytest.param(COUNTS, "abc", 8, MissingTopic, "no examples.c", id="missing topic"),
        pytest.param(COUNTS, "ab", 2, TopicMismatch, "cannot remove partitions", id="fewer"),
        pytest.param(
            COUNTS | {"clicks": 6}, "ab", 8, TopicMismatch, "clicks 6", id="counts that differ"
        ),
    ],
)
def test_a_growth_that_would_part_clicks_from_impressions_is_refused(
    counts: dict[str, int], models: str, partitions: int, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        check_growth(counts, list(models), partitions)


def test_waiting_reports_a_lag_and_an_open_window_once_each() -> None:
    states = [(5, 900), (3, 800), (0, 700), (0, 300), (0, 0)]
    looks = iter([OpenWindows(*state, 10) for state in states])
    reported: list[OpenWindows] = []
    found = await_closed(lambda: next(looks), reported.append, lambda _: None)
    assert found == (0, 0, 10)
    assert [(each.lag, each.wait_ms) for each in reported] == [(5, 900), (3, 800), (0, 700)]
