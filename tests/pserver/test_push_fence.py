"""The marks of a bucket refuse a push that does not start at them."""

import pytest

from headrace.pserver.push_fence import marks_after, passes_fence
from headrace.pserver.store import OffsetSpan, Push


def _push(*spans: OffsetSpan) -> Push:
    return Push(0, spans, b"8 bytes.", b"")


def test_a_push_passes_the_fence_once() -> None:
    push, marks = _push(OffsetSpan("e/0", 0, 5), OffsetSpan("e/1", 3, 4)), {"e/1": 3, "e/2": 9}
    assert passes_fence(push, marks)
    after = marks_after(push, marks)
    assert after == {"e/0": 5, "e/1": 4, "e/2": 9}
    assert not passes_fence(push, after)


@pytest.mark.parametrize("mark", [2, 4])
def test_a_push_is_refused_if_one_of_its_spans_starts_elsewhere(mark: int) -> None:
    push = _push(OffsetSpan("e/0", 0, 5), OffsetSpan("e/1", 3, 4))
    assert not passes_fence(push, {"e/1": mark})


def test_a_bucket_that_a_failover_set_back_refuses_the_next_push_and_takes_the_lost_one() -> None:
    lost, following = _push(OffsetSpan("e/0", 0, 5)), _push(OffsetSpan("e/0", 5, 7))
    assert not passes_fence(following, {})
    assert passes_fence(lost, {})
    assert passes_fence(following, marks_after(lost, {}))


def test_a_mark_that_moves_back_to_0_is_deleted_and_ends_once() -> None:
    begin = _push(OffsetSpan("e/0", 0, 5), OffsetSpan("e/0#3", 0, 8))
    end = _push(OffsetSpan("e/0#3", 8, 0))
    parked = marks_after(begin, {})
    assert parked == {"e/0": 5, "e/0#3": 8}
    assert passes_fence(end, parked)
    assert marks_after(end, parked) == {"e/0": 5}
    assert not passes_fence(end, marks_after(end, parked))


@pytest.mark.parametrize(("start", "stop"), [(5, 3), (-1, 2), (0, -1), (-2, 0)])
def test_a_span_moves_a_mark_forward_or_ends_it(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="stop 0"):
        OffsetSpan("e/0", start, stop)
