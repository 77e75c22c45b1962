"""An event is taken once no source may still deliver an earlier one."""

import logging

import pytest

from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.reading.source_order import (
    UNBOUNDED,
    NextEvent,
    OrderPatience,
    SourceOrder,
)

A, B = Source("examples.test", 0), Source("examples.test", 1)
PATIENCE = OrderPatience(order_wait_ms=1_000, backlog_wait_ms=30_000)
HISTORY = NextEvent(event_ms=500, append_ms=10_000, least_delay_ms=9_600)
"""Its delay of 9,500 is less than any before: event time goes faster than Kafka's clock."""
LIVE = NextEvent(event_ms=500, append_ms=540, least_delay_ms=15)


def both(a_ms: int = 900, b_ms: int = 400, append_ms: int = 9_990) -> SourceOrder:
    """Two sources that have delivered records up to these event times."""
    order = SourceOrder(PATIENCE)
    order.begin([A, B])
    order.delivered(A, a_ms, append_ms)
    order.delivered(B, b_ms, append_ms)
    return order


def taken(order: SourceOrder, event: NextEvent, now_ms: int) -> bool:
    bounds = order.bounds(event, now_ms)
    return event.event_ms <= bounds.until_ms and (event.live or event.event_ms <= bounds.at_end_ms)


@pytest.mark.parametrize(("event", "early_ms"), [(HISTORY, 0), (LIVE, 100)])
def test_a_source_below_its_end_is_waited_for_until_it_delivers_a_later_record(
    event: NextEvent, early_ms: int
) -> None:
    order = both(b_ms=300)
    assert not taken(order, event, 0)
    order.delivered(B, 499 - early_ms, 9_995)
    assert not taken(order, event, 0)
    order.delivered(B, 500 - early_ms, 9_996)
    assert taken(order, event, 0)


def test_history_waits_for_a_source_at_its_end_until_its_writer_has_passed_that_time() -> None:
    order = both()
    order.ended(B, 0)
    assert not taken(order, HISTORY, 0)
    order.delivered(B, 400, 9_995, complete_ms=500)
    assert not taken(order, HISTORY, 0)  # more of the transaction may follow
    order.ended(B, 0)
    assert taken(order, HISTORY, 0)


def test_live_events_do_not_wait_for_a_source_at_its_end() -> None:
    order = both()
    order.ended(B, 0)
    assert taken(order, LIVE, 0)


def test_wall_time_passes_a_source_at_its_end() -> None:
    order = both()
    order.ended(B, 7_000)
    assert not taken(order, HISTORY, 7_099)
    assert taken(order, HISTORY, 7_100)


def test_the_first_record_after_the_end_revokes_it() -> None:
    order = both(b_ms=300)
    order.ended(B, 0)
    assert taken(order, LIVE, 0)
    order.delivered(B, 350, 9_995)
    assert not taken(order, LIVE, 0)


def test_a_source_that_was_started_again_is_waited_for() -> None:
    order = both(b_ms=900)
    assert taken(order, HISTORY, 0)
    order.begin([B])
    assert not taken(order, HISTORY, 0)
    order.forget([B])
    assert taken(order, HISTORY, 0)


@pytest.mark.parametrize(
    ("at_end", "event", "append_ms", "wait_ms"),
    [
        pytest.param(False, HISTORY, 9_990, PATIENCE.backlog_wait_ms, id="history"),
        pytest.param(False, LIVE, 530, PATIENCE.order_wait_ms, id="live, a leader died"),
        pytest.param(False, LIVE._replace(append_ms=9_000), 530, PATIENCE.backlog_wait_ms,
                     id="a backlog of live traffic"),
        pytest.param(True, HISTORY, 9_990, PATIENCE.order_wait_ms, id="at its end"),
    ],
)  # fmt: skip
def test_the_wait_for_a_silent_source_is_bounded(
    at_end: bool, event: NextEvent, append_ms: int, wait_ms: int
) -> None:
    order = both(b_ms=-10_000_000, append_ms=append_ms)
    if at_end:
        order.ended(B, 0)
    assert not taken(order, event, 0)
    assert not taken(order, event, wait_ms - 1)
    assert taken(order, event, wait_ms)
    assert taken(order, event._replace(event_ms=501), wait_ms + 1)  # not waited for again
    order.delivered(B, -9_000_000, append_ms)
    assert not taken(order, event, wait_ms + 2)


def test_time_without_an_event_that_waits_does_not_count() -> None:
    order = both()
    order.ended(B, 10**9)  # wall time must not pass it
    assert not taken(order, HISTORY, 0)
    assert order.bounds(None, 500).at_end_ms < 0
    assert not taken(order, HISTORY, 1_400)
    assert not taken(order, HISTORY, 2_399)
    assert taken(order, HISTORY, 2_400)


def test_going_on_without_a_source_that_has_more_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    order = both()
    with caplog.at_level(logging.WARNING):
        for now_ms in (0, 30_000, 30_001):
            order.bounds(HISTORY, now_ms)
    [message] = [record.getMessage() for record in caplog.records]
    assert message == (
        "examples.test/1: expected the next of its records, got none for 30.0 s: going on without "
        "them, in another order of event time. See whether its leader is down"
    )


def test_a_reader_without_sources_bounds_nothing() -> None:
    assert SourceOrder(PATIENCE).bounds(HISTORY, 0) == UNBOUNDED
