"""Tests rules of the joiner core that the reference of `tests.ingest.simulation` does not have."""

import pytest

from headrace.ingest.joiner.core import join
from headrace.ingest.joiner.core.input import EventSide
from tests.ingest.joiner.partition import T0_MS, WINDOW_MS, Partition, clicked, records, shown, tick

END = tick(100 * WINDOW_MS)
IMPRESSIONS, CLICKS = EventSide.IMPRESSIONS, EventSide.CLICKS


def test_a_click_without_an_impression_is_unmatched_and_not_late() -> None:
    partition = Partition()
    assert partition.join([shown("a", 0), END], [clicked("z", 1), END])[1:] == []
    counters = partition.joiner.counters
    assert (counters.unmatched_clicks, counters.late_clicks) == (1, 0)


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
    assert partition.joiner.window.known <= 2 * WINDOW_MS // 50 + 1
    assert partition.joiner.checkpoint().shown.rewind >= 5000 - 5 * WINDOW_MS


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


def test_a_click_that_a_closing_window_leaves_unmatched_counts_once_across_a_restart() -> None:
    """The watermark passes the click's limit, and the joiner is killed before another event."""
    waits, opens = [clicked("x", 0)], [shown("a", 100)]
    before, after = Partition("window"), Partition("window")
    for side, values in ((IMPRESSIONS, opens), (CLICKS, waits)):
        before.offer(side, records(side, values))
        before.joiner.ended(side)
    made = [before.advance(now_ms) for now_ms in (0, 1_000, 2_000)]
    assert made == [[], [], [("closed", "a", 0)]]
    assert before.joiner.counters.unmatched_clicks == 1

    after.joiner.restore(before.joiner.checkpoint())
    for side, values in ((IMPRESSIONS, [*opens, shown("b", 160)]), (CLICKS, waits)):
        after.offer(side, records(side, values))
        after.joiner.ended(side)
    for now_ms in (2_000, 3_000):
        after.advance(now_ms)
    assert after.joiner.counters.impressions == 2
    assert after.joiner.counters.unmatched_clicks == 1


def test_a_restart_keeps_the_least_delay_of_events_that_are_not_read_again() -> None:
    hour_ms = 3_600_000
    values = [shown("a", 0), tick(hour_ms), tick(hour_ms + 1), shown("c", hour_ms + 70)]
    appends = [T0_MS + at_ms for at_ms in (5, hour_ms + 8, hour_ms + 9, hour_ms + 76)]
    found = records(IMPRESSIONS, values, appends)
    before, after = Partition(), Partition()
    for record in found[:3]:
        before.offer(IMPRESSIONS, [record])
        before.joiner.ended(CLICKS)
        before.advance()
    checkpoint = before.joiner.checkpoint()
    assert checkpoint.shown.rewind == checkpoint.shown.position
    after.joiner.restore(checkpoint)
    after.offer(IMPRESSIONS, found[3:])
    after.joiner.ended(CLICKS)
    assert after.advance() == [("shown", "c", 0)]
