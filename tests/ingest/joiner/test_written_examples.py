"""Examples that a transaction committed in part has written are joined again without a double."""

from dataclasses import replace

import numpy as np
import pytest

from headrace.ingest.examples.batch import Examples, Kind
from headrace.ingest.joiner.core.input import EventSide
from headrace.ingest.joiner.written_examples import WrittenExamples
from tests.ingest.joiner.partition import Partition, brief, clicked, records, shown, tick

IMPRESSIONS, CLICKS = EventSide


def _joined(click_ms: int) -> Examples:
    """The examples of an impression with a wait of 50 ms and its click."""
    partition = Partition(wait_ms=50)
    for side, event in ((IMPRESSIONS, shown("a", 0)), (CLICKS, clicked("a", click_ms))):
        partition.offer(side, records(side, [event, tick(5000)]))
        partition.joiner.ended(side)
    return partition.joiner.advance(0).examples


ONE, TWO = _joined(50), _joined(51)


def test_a_click_up_to_the_wait_makes_one_example_and_a_later_one_two() -> None:
    assert brief(ONE) == [("closed", "a", 1)]
    assert brief(TWO) == [("shown", "a", 0), ("clicked", "a", 1)]
    assert (ONE.event_ms - ONE.shown_ms).tolist() == [50]
    assert (TWO.event_ms - TWO.shown_ms).tolist() == [50, 51]


@pytest.mark.parametrize("before", [ONE, TWO])
@pytest.mark.parametrize("again", [ONE, TWO])
def test_an_impression_and_its_click_are_written_once_however_they_are_joined_again(
    before: Examples, again: Examples
) -> None:
    written = WrittenExamples([before])
    assert brief(written.without(again)) == []
    assert not written
    assert brief(written.without(again)) == brief(again)


def test_a_click_whose_impression_is_in_the_topic_is_written_by_itself() -> None:
    only = np.array([Kind.SHOWN], np.uint8)
    written = WrittenExamples([replace(ONE, kinds=only, labels=np.zeros(1, np.uint8))])
    assert brief(written.without(ONE)) == [("clicked", "a", 1)]
    assert not written
