"""Tests the rules of the joiner core, one by one."""

import random

import pytest

from headrace.ingest.events.contract import Reason
from headrace.ingest.features.label_policy import Policy
from headrace.ingest.joiner.core import join
from headrace.ingest.joiner.core.checkpoint import JoinerCounters
from headrace.ingest.joiner.core.input import EventSide
from tests.effort import seeds
from tests.ingest.joiner.partition import (
    LONG_AGO_MS,
    T0_MS,
    WINDOW_MS,
    Partition,
    clicked,
    records,
    shown,
    tick,
)

END = tick(100 * WINDOW_MS)
IMPRESSIONS, CLICKS = EventSide.IMPRESSIONS, EventSide.CLICKS


def test_the_immediate_policy_makes_one_example_of_an_impression_and_one_of_its_click() -> None:
    partition = Partition()
    made = partition.join([shown("a", 0), shown("b", 5), END], [clicked("a", 7), END])
    assert made == [("shown", "a", 0), ("shown", "b", 0), ("clicked", "a", 1)]
    counters = partition.joiner.counters
    assert counters == JoinerCounters(impressions=2, clicks=1, examples=3, ticks=2)


def test_the_window_policy_labels_an_impression_when_its_window_closes() -> None:
    partition = Partition("window")
    made = partition.join([shown("a", 0), shown("b", 5), END], [clicked("b", 7), END])
    assert made == [("closed", "a", 0), ("closed", "b", 1)]
    assert partition.joiner.counters == JoinerCounters(impressions=2, clicks=1, examples=2, ticks=2)


def test_a_label_window_is_open_to_its_last_millisecond_and_no_longer() -> None:
    for late_ms, made in ((0, []), (1, [("closed", "a", 0)])):
        partition = Partition("window")
        end = tick(WINDOW_MS + late_ms)
        assert partition.join([shown("a", 0), end], [end]) == made


@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.parametrize(("delay_ms", "late"), [(WINDOW_MS, 0), (WINDOW_MS + 1, 1)])
def test_a_click_is_learned_up_to_the_window_and_late_after(
    policy: str, delay_ms: int, late: int
) -> None:
    partition = Partition(policy)
    made = partition.join([shown("a", 0), END], [clicked("a", delay_ms), END])
    assert sum(label for _, _, label in made) == 1 - late
    counters = partition.joiner.counters
    assert (counters.clicks, counters.late_clicks) == (1, late)


@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.parametrize(("early_ms", "late"), [(WINDOW_MS, 0), (WINDOW_MS + 1, 1)])
def test_a_click_waits_for_its_impression_up_to_the_window(
    policy: str, early_ms: int, late: int
) -> None:
    partition = Partition(policy)
    made = partition.join([shown("a", early_ms), END], [clicked("a", 0), END])
    assert sum(label for _, _, label in made) == 1 - late
    assert partition.joiner.counters.unmatched_clicks == late
    assert partition.joiner.held.waiting_clicks == 0


def test_a_click_that_waited_has_its_own_times_and_the_impressions_fields() -> None:
    partition = Partition()
    first = shown("a", 20, user="u", price=3.5, tags=["x"], device=1, request_id="r")
    for side, value, append_ms in (
        (IMPRESSIONS, first, LONG_AGO_MS + 1),
        (CLICKS, clicked("a", 10), LONG_AGO_MS + 2),
    ):
        partition.offer(side, records(side, [value, tick(30)], append_ms))
    made = partition.joiner.advance(0).examples
    assert made.kinds.tolist() == [0, 1]
    assert (made.event_ms - T0_MS).tolist() == [20, 10]
    assert (made.shown_ms - T0_MS).tolist() == [20, 20]
    assert (made.append_ms - LONG_AGO_MS).tolist() == [1, 2]
    assert made.features.ids[0].tolist() == made.features.ids[1].tolist()
    assert made.features.numbers.tolist() == [[3.5], [3.5]]
    assert made.features.bag_offsets.tolist() == [0, 1, 1, 2, 2]
    assert made.request_ids.to_pylist() == ["r", "r"]
    assert made.slices["device"].to_pylist() == ["1", "1"]
    assert made.fingerprint == partition.fields.fingerprint


def test_a_click_without_an_impression_is_unmatched_and_not_late() -> None:
    partition = Partition()
    assert partition.join([shown("a", 0), END], [clicked("z", 1), END])[1:] == []
    counters = partition.joiner.counters
    assert (counters.unmatched_clicks, counters.late_clicks) == (1, 0)


@pytest.mark.parametrize("policy", list(Policy))
def test_a_repeated_impression_or_click_is_a_duplicate(policy: str) -> None:
    partition = Partition(policy)
    impressions = [shown("a", 0), shown("a", 0), shown("a", 9), END]
    made = partition.join(impressions, [clicked("a", 10), clicked("a", 11), END])
    assert sum(label for _, _, label in made) == 1
    counters = partition.joiner.counters
    assert (counters.impressions, counters.duplicate_impressions) == (1, 2)
    assert (counters.clicks, counters.duplicate_clicks, counters.duplicates) == (2, 1, 3)


def test_two_clicks_that_waited_for_one_impression_are_a_click_and_a_duplicate() -> None:
    partition = Partition()
    made = partition.join([shown("a", 20), END], [clicked("a", 1), clicked("a", 2), END])
    assert made == [("shown", "a", 0), ("clicked", "a", 1)]
    assert partition.joiner.counters.duplicate_clicks == 1


def test_an_impression_id_reused_after_two_windows_is_a_new_impression() -> None:
    partition = Partition()
    again = 2 * WINDOW_MS + 1
    made = partition.join([shown("a", 0), shown("a", again), END], [clicked("a", again), END])
    assert made == [("shown", "a", 0), ("shown", "a", 0), ("clicked", "a", 1)]


def test_a_constantly_repeated_impression_id_is_one_impression_and_blocks_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(join, "_MARK_ROWS", 1)
    partition = Partition()
    for at in range(0, 5000, 50):
        values = [shown("undefined", at), shown(f"i{at}", at), tick(at)]
        found = records(IMPRESSIONS, values)
        partition.offer(IMPRESSIONS, [each._replace(offset=each.offset + at) for each in found])
        partition.offer(CLICKS, [records(CLICKS, [tick(at)])[0]._replace(offset=at)])
        partition.advance()
    counters = partition.joiner.counters
    assert (counters.impressions, counters.duplicate_impressions) == (101, 99)
    assert partition.joiner.held.known <= 2 * WINDOW_MS // 50 + 1
    assert partition.joiner.checkpoint().shown.rewind >= 5000 - 5 * WINDOW_MS


def test_an_impression_older_than_the_window_is_a_dead_letter() -> None:
    partition = Partition()
    values = [shown("a", 200), shown("b", 100), shown("c", 99), END]
    made = partition.join(values, [END])
    assert [identity for _, identity, _ in made] == ["a", "b"]
    [dead] = partition.dead
    assert (dead.reason, dead.record.value) == (Reason.TOO_LATE, values[2])
    assert partition.joiner.counters.dead_letters == 1


def test_an_unusable_message_becomes_a_dead_letter_that_quotes_the_record() -> None:
    partition = Partition()
    partition.join([b"{", shown("a", 0), END], [b"", END])
    dead = {(each.record.source.topic, each.record.offset, each.reason) for each in partition.dead}
    assert dead == {("impressions", 10, Reason.NOT_JSON), ("clicks", 10, Reason.EMPTY)}
    assert partition.joiner.counters.dead_letters == 2


def test_the_joiner_takes_the_event_with_the_lesser_time_first() -> None:
    partition = Partition()
    made = partition.join(
        [shown("a", 0), shown("b", 30), shown("c", 50), END],
        [clicked("a", 20), clicked("b", 40), END],
    )
    assert [(kind[0], identity) for kind, identity, _ in made] == [
        ("s", "a"),
        ("c", "a"),
        ("s", "b"),
        ("c", "b"),
        ("s", "c"),
    ]


def test_the_joiner_waits_for_a_source_that_is_not_at_its_end() -> None:
    partition = Partition()
    partition.offer(IMPRESSIONS, records(IMPRESSIONS, [shown("a", 0), shown("b", 50)]))
    assert partition.advance(now_ms=10**6) == []
    partition.offer(CLICKS, records(CLICKS, [tick(10)]))
    assert partition.advance(now_ms=10**6) == [("shown", "a", 0)]


def test_a_source_at_its_end_delays_the_other_by_the_wall_time_that_passes() -> None:
    partition = Partition()
    partition.offer(IMPRESSIONS, records(IMPRESSIONS, [shown("a", 0), shown("b", 50)]))
    partition.joiner.ended(CLICKS)
    assert partition.advance(now_ms=1000) == [("shown", "a", 0)]
    assert partition.advance(now_ms=1049) == []
    following = partition.joiner.following
    assert following is not None
    assert following.event_ms == T0_MS + 50
    assert partition.advance(now_ms=1050) == [("shown", "b", 0)]


def test_time_between_appends_at_kafka_counts_as_wall_time() -> None:
    # a joiner that was down for an hour must not need another hour to catch up without clicks
    partition = Partition()
    hour_ms = 3_600_000
    values = [shown("a", 0), shown("b", hour_ms), shown("c", hour_ms + 70)]
    values += [shown("d", 2 * hour_ms), shown("e", 2 * hour_ms + 70)]
    appends = [5, hour_ms + 8, hour_ms + 75, 2 * hour_ms + 5, 2 * hour_ms + 74]
    appends = [T0_MS + append_ms for append_ms in appends]
    partition.offer(IMPRESSIONS, records(IMPRESSIONS, values, appends))
    partition.joiner.ended(CLICKS)
    made = partition.advance()
    assert [identity for _, identity, _ in made] == ["a", "b", "c", "d"]
    # no event before was appended within 4 ms
    assert partition.advance(now_ms=69) == []
    assert partition.advance(now_ms=70) == [("shown", "e", 0)]


def test_replayed_history_waits_for_the_events_of_the_other_source() -> None:
    partition = Partition()
    values = [shown(f"{i}", 1000 * i) for i in range(5)]
    appends = [LONG_AGO_MS + i for i in range(5)]
    partition.offer(IMPRESSIONS, records(IMPRESSIONS, values, appends))
    partition.joiner.ended(CLICKS)
    assert partition.advance() == [("shown", "0", 0)]
    partition.offer(CLICKS, records(CLICKS, [clicked("0", 50), tick(2500)]))
    assert [identity for _, identity, _ in partition.advance(now_ms=5)] == ["0", "1", "2"]


def test_a_producer_with_a_fast_clock_does_not_delay_its_partition() -> None:
    # its events are ordered by the time of their append
    partition = Partition()
    ahead = 3_600_000
    values = [shown("a", 10), shown("b", ahead), shown("c", 30)]
    appends = [T0_MS + 11, T0_MS + 20, T0_MS + 31]
    partition.offer(IMPRESSIONS, records(IMPRESSIONS, values, appends))
    partition.offer(CLICKS, records(CLICKS, [clicked("b", 25), clicked("z", 40)], T0_MS + 50))
    made = partition.advance()
    assert made == [("shown", "a", 0), ("shown", "b", 0), ("clicked", "b", 1), ("shown", "c", 0)]
    assert partition.joiner.watermark_ms == T0_MS + 30


def test_label_windows_close_with_wall_time_while_both_sources_are_silent() -> None:
    partition = Partition("window")
    assert partition.join([shown("a", 0)], []) == []
    assert partition.advance(now_ms=WINDOW_MS) == []
    assert partition.advance(now_ms=WINDOW_MS + 1) == [("closed", "a", 0)]


def test_more_windows_that_close_at_one_time_than_the_limit_close_together() -> None:
    partition = Partition("window")
    count = 300
    partition.offer(IMPRESSIONS, records(IMPRESSIONS, [shown(f"{i}", 0) for i in range(count)]))
    partition.offer(CLICKS, records(CLICKS, [tick(1), END]))
    while partition.advance(limit=7) or partition.joiner.queued(IMPRESSIONS):
        pass
    last = records(IMPRESSIONS, [END])[0]._replace(offset=10**6)
    partition.offer(IMPRESSIONS, [last])
    assert len(partition.advance(limit=7)) == count


def test_the_joiner_takes_and_closes_nothing_later_than_the_limit() -> None:
    partition = Partition("window")
    for side in (IMPRESSIONS, CLICKS):
        partition.offer(side, records(side, [shown("a", 0), tick(500)]))
    until_ms = T0_MS + WINDOW_MS
    assert len(partition.joiner.advance(0, until_ms=until_ms).examples) == 0
    assert len(partition.joiner.advance(0, until_ms=until_ms + 1).examples) == 1
    assert partition.joiner.counters.ticks == 0


@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.parametrize("seed", seeds(5))
def test_the_size_of_polls_does_not_change_the_examples(policy: str, seed: int) -> None:
    dice = random.Random(seed)
    impressions = [shown(f"{i}", i + dice.randrange(40)) for i in range(400)] + [END]
    clicks = [clicked(f"{i}", i + dice.randrange(130)) for i in range(0, 400, 3)] + [END]
    streams = {IMPRESSIONS: records(IMPRESSIONS, impressions), CLICKS: records(CLICKS, clicks)}
    whole = Partition(policy)
    expected = whole.join(impressions, clicks)
    polled = Partition(policy)
    while any(streams.values()):
        side = dice.choice([side for side, left in streams.items() if left])
        size = dice.randrange(1, 60)
        polled.offer(side, streams[side][:size])
        streams[side] = streams[side][size:]
        polled.advance(limit=dice.randrange(1, 50))
    for side in streams:
        polled.joiner.ended(side)
    polled.advance()
    assert polled.made == expected
    assert polled.joiner.counters == whole.joiner.counters


def test_the_checkpoint_of_closed_windows_needs_nothing_to_be_read_again() -> None:
    partition = Partition()
    partition.join([shown("a", 0), shown("b", 1), b"", END], [clicked("a", 2), END])
    checkpoint = partition.joiner.checkpoint()
    assert checkpoint.shown.position == 17
    assert checkpoint.clicked.position == 13
    # all windows have closed
    assert checkpoint.shown.rewind == checkpoint.shown.position


def test_a_joiner_that_never_took_anything_has_a_checkpoint_to_begin_from() -> None:
    partition = Partition()
    checkpoint = partition.joiner.checkpoint()
    assert checkpoint.shown.position == checkpoint.shown.rewind == -1
    partition.joiner.restore(checkpoint)
    assert not partition.joiner.restoring
    assert partition.join([shown("a", 0), END], [END]) == [("shown", "a", 0)]


def test_a_restore_ends_where_records_were_deleted_meanwhile() -> None:
    partition = Partition()
    partition.offer(IMPRESSIONS, records(IMPRESSIONS, [shown("a", 0), shown("b", 1), tick(3)]))
    partition.offer(CLICKS, records(CLICKS, [clicked("a", 2)]))
    partition.advance()
    checkpoint = partition.joiner.checkpoint()
    partition.joiner.restore(checkpoint)
    restoring = []
    for side in (IMPRESSIONS, CLICKS):
        partition.joiner.ended(side)
        partition.advance()
        restoring.append(partition.joiner.restoring)
    assert restoring == [True, False]
    assert partition.joiner.checkpoint().shown.position == checkpoint.shown.position


def test_joiner_counters_add_up() -> None:
    one = JoinerCounters(impressions=1, clicks=2, duplicate_clicks=3)
    both = one + JoinerCounters(impressions=10, duplicate_impressions=5)
    assert both == JoinerCounters(11, 2, 0, 5, 3)
    assert both.duplicates == 8


DAY_MS = 24 * 3600 * 1000


@pytest.mark.parametrize("policy", ["immediate", "window"])
def test_a_tick_of_tomorrow_delays_no_partition_and_makes_no_later_event_late(policy: str) -> None:
    partition = Partition(policy)
    before, after, later = range(0, 100, 10), range(101, 200, 10), range(10**4, 10**4 + 100, 10)
    for side, made in ((IMPRESSIONS, shown), (CLICKS, clicked)):
        times = [*before, 100, *after, *later]
        values = [made(f"at {at}", at) for at in times]
        values[len(before)] = tick(DAY_MS - 1)
        partition.offer(side, records(side, values, [T0_MS + at for at in times]))
        partition.offer(side, records(side, [tick(10**4 + 100 + WINDOW_MS)], T0_MS + 10**4 + 100))
        partition.joiner.ended(side)
    partition.advance()
    counters = partition.joiner.counters
    assert (counters.impressions, counters.clicks, counters.dead_letters) == (30, 30, 0)
    assert (counters.late_clicks, counters.unmatched_clicks, counters.ticks) == (0, 0, 4)
    assert counters.examples == (60 if policy == "immediate" else 30)


def test_the_last_tick_of_a_replay_closes_the_window_of_an_event_appended_just_before() -> None:
    partition = Partition("window")
    partition.offer(IMPRESSIONS, records(IMPRESSIONS, [shown("a", 5)], T0_MS + 2))
    for side in (IMPRESSIONS, CLICKS):
        partition.offer(side, records(side, [tick(5 + WINDOW_MS + 1)], T0_MS + 2))
        partition.joiner.ended(side)
    assert [made[1] for made in partition.advance()] == ["a"]


@pytest.mark.parametrize("policy", ["immediate", "window"])
def test_examples_of_events_of_tomorrow_have_the_time_of_their_append(policy: str) -> None:
    partition = Partition(policy)
    ahead = DAY_MS // 2
    impressions = [shown("a", ahead), shown("b", 1)]
    partition.offer(IMPRESSIONS, records(IMPRESSIONS, impressions, [T0_MS + 3, T0_MS + 4]))
    partition.offer(CLICKS, records(CLICKS, [clicked("a", ahead)], T0_MS + 5))
    for side in (IMPRESSIONS, CLICKS):
        partition.offer(side, records(side, [tick(2 * WINDOW_MS)], T0_MS + WINDOW_MS))
        partition.joiner.ended(side)
    made = partition.joiner.advance(0).examples
    times = zip(made.impression_ids.to_pylist(), made.event_ms, made.shown_ms, strict=True)
    found = sorted((name, int(event) - T0_MS, int(shown) - T0_MS) for name, event, shown in times)
    clicks = [("a", 5, 3)] if policy == "immediate" else []
    assert found == sorted([("a", 3, 3), ("b", 1, 1), *clicks])
