"""Histories of clicks in rows: the newest items, whatever the order, and never a wrong one."""

from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.learner.inputs.click_slots import (
    item_id,
    read_items,
    slot_id,
    slot_scratch,
    slots_of,
    write_click,
)
from headrace.learner.kernels.pending_deltas import PendingDeltas, view_of
from headrace.pserver.rows.deltas import RowDeltas
from headrace.pserver.rows.table import RowTable
from headrace.pserver.store import Shape

BUCKETS, WIDTH, NUMBER = 16, 2, np.uint64(7)
USER, LAST, START_S = np.uint64(0x123456789ABCDEF0), 5, 1_700_000_000
SLOTS = slots_of(LAST)

Click = tuple[int, int]  # second after the start, number of the item
clicks = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 30)), max_size=60)


def _item(number: int) -> int:
    return int(item_id(np.uint64(number) << np.uint64(20), NUMBER))


class _Writer:
    """A learner's view of the rows, and what it would push."""

    def __init__(self, rows: RowTable | None = None) -> None:
        self.view = view_of(WIDTH)
        self._pending = PendingDeltas(self.view, Shape("test", BUCKETS, WIDTH, "", ""))
        if rows is not None:
            self._pending.refresh(rows, rows.ids.copy(), None)

    def write(self, clicks: list[Click]) -> None:
        for second, number in clicks:
            self.view.reserve(1)
            gaining = self._pending.reserve()
            item = np.uint64(_item(number))
            arguments = (USER, item, NUMBER, START_S + second, LAST, slot_scratch(SLOTS))
            write_click(self.view.columns, gaining, *arguments)

    def push(self) -> list[RowDeltas]:
        return list(self._pending.take(range(BUCKETS)).values())


def _merged(*pushed: list[RowDeltas]) -> RowTable:
    rows = RowTable(WIDTH)
    for each in pushed:
        for deltas in each:
            rows.add(deltas)
    return rows


def _read(rows: RowTable, before: int = 1000) -> list[int]:
    ids = np.zeros(LAST, np.uint64)
    scratch = slot_scratch(SLOTS)
    found = (USER, NUMBER, START_S + before, LAST, scratch, ids, 0)
    return list(ids[: read_items(rows.columns, *found)].tolist())


def _newest(clicks: list[Click], before: int = 1000) -> list[int]:
    ordered = sorted({(second, _item(number)) for second, number in clicks if second < before})
    return [item for _, item in ordered][-LAST:]


@given(clicks)
@settings(deadline=None)
def test_a_history_is_the_newest_clicks_whatever_their_order(given: list[Click]) -> None:
    writer = _Writer()
    writer.write(given)
    assert _read(writer.view) == _newest(given)
    assert _read(_merged(writer.push())) == _newest(given)


@given(clicks, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_clicks_that_are_written_again_change_nothing(given: list[Click], random: Random) -> None:
    writer = _Writer()
    writer.write(given)
    newest = sorted(set(given))[-LAST:]
    before = writer.view.columns.shows[: len(writer.view)].copy()
    random.shuffle(newest)
    writer.write(newest)
    assert (writer.view.columns.shows[: len(writer.view)] == before).all()


@given(clicks, st.integers(0, 41))
@settings(deadline=None)
def test_a_history_is_read_as_of_a_second(given: list[Click], before: int) -> None:
    given = sorted(set(given))
    later = [click for click in given if click[0] >= before]
    if len(later) <= SLOTS - LAST - 4:
        writer = _Writer()
        writer.write(given)
        assert _read(writer.view, before) == _newest(given, before)


@given(clicks, clicks, clicks)
@settings(deadline=None)
def test_pushes_of_learners_at_once_commute_and_never_make_an_item(
    common: list[Click], ours: list[Click], theirs: list[Click]
) -> None:
    first = _Writer()
    first.write(common)
    base = first.push()
    pushed = []
    for own in (ours, theirs):
        writer = _Writer(_merged(base))
        writer.write(own)
        pushed.append(writer.push())
    one, other = _merged(base, *pushed), _merged(base, *reversed(pushed))
    assert _read(one) == _read(other)
    every = {_item(number) for _, number in (*common, *ours, *theirs)}
    assert set(_read(one)) <= every
    healed = _Writer(one)
    later = [(100 + k, k + 1) for k in range(3 * SLOTS)]
    healed.write(later)
    assert _read(healed.view) == _newest(later)


def test_pushes_that_write_different_slots_keep_all_clicks() -> None:
    first = _Writer()
    first.write([(k, k + 1) for k in range(LAST)])
    base = first.push()
    kept = 0
    for number in range(100, 160):
        pushed = []
        for own in ([(50, number)], [(51, number + 100)]):
            writer = _Writer(_merged(base))
            writer.write(own)
            pushed.append(writer.push())
        found = _read(_merged(base, *pushed))
        kept += found[-2:] == [_item(number), _item(number + 100)]
    assert kept >= 40  # three of four, as long as the hash is good


def test_the_slots_of_a_user_are_in_one_bucket() -> None:
    shape = Shape("test", BUCKETS, WIDTH, "", "")
    ids = np.array([slot_id(USER, NUMBER, k) for k in range(SLOTS)], np.uint64)
    assert len(set(ids.tolist())) == SLOTS
    assert len(set(shape.bucket_of(ids).tolist())) == 1
    assert set((ids & np.uint64(1023)).tolist()) == {int(NUMBER)}
