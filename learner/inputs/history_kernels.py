"""Fills the histories of a batch, and writes its clicks, slate by slate. Compiled."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.ingest.examples.batch import Kind
from headrace.learner.inputs.click_slots import item_id, read_items, slot_id, slots_of, write_click
from headrace.learner.kernels.row_ids import NUMBER_BITS
from headrace.learner.kernels.row_lookup import bucket_at, shift_of
from headrace.runtime.kernels.numba_kernels import inlined, kernel

Integers = npt.NDArray[np.int64]

_SHOWN, _CLOSED = int(Kind.SHOWN), int(Kind.CLOSED)
_FIRST = np.int64(0)


class HistoryProgram(NamedTuple):
    """The histories of a model, as the arrays that kernels walk through."""

    of_bag: Integers  # (bags,) which history the bag is, or -1
    users: Integers  # (histories,) column of the single-valued field that names the user
    items: Integers  # (histories,) column of the field whose values are the items
    lasts: Integers  # (histories,) most items
    numbers: npt.NDArray[np.uint64]  # (histories,) the low bits of their ids
    window_ms: Integers  # (1,) after an impression until a CLOSED example is made of it
    absent: npt.NDArray[np.uint64]  # (1,) the id of an absent value, without the field's number


class FilledBags(NamedTuple):
    """The bags of a batch with the items of its histories."""

    ids: npt.NDArray[np.uint64]  # (capacity,)
    offsets: npt.NDArray[np.int32]  # (n * bags + 1,)


@inlined
def _is_absent(program, value):  # type: ignore[no-untyped-def]
    return (value & ~NUMBER_BITS) == program.absent[0]


@inlined
def _repeats(program, ids, i, seconds_differ):  # type: ignore[no-untyped-def]
    """Return whether the histories of example i are those of the example before it."""
    same = not seconds_differ
    for h in range(program.users.shape[0]):
        same = same and ids[i, program.users[h]] == ids[i - 1, program.users[h]]
    return same


@inlined
def _fill_example(columns, program, features, i, before, repeats, scratch, filled):  # type: ignore[no-untyped-def]
    """Write the bags of example i, its histories as of a second.

    repeats: whether its histories are those of the example before it.
    """
    bags = program.of_bag.shape[0]
    out, offsets = filled.ids, filled.offsets
    at = np.int64(offsets[i * bags])
    for j in range(bags):
        h, bag = program.of_bag[j], i * bags + j
        if h < 0:
            for k in range(features.bag_offsets[bag], features.bag_offsets[bag + 1]):
                out[at] = features.bag_ids[k]
                at += 1
        elif repeats:
            for k in range(offsets[bag - bags], offsets[bag - bags + 1]):
                out[at] = out[k]
                at += 1
        else:
            user, number = features.ids[i, program.users[h]], program.numbers[h]
            if not _is_absent(program, user):
                last = program.lasts[h]
                at += read_items(columns, user, number, before, last, scratch, out, at)
        offsets[bag + 1] = at


@kernel
def fill(columns, program, features, seconds, scratch, filled):  # type: ignore[no-untyped-def]
    """Fill the histories of impressions shown in these seconds, (n,), from the rows as they are."""
    filled.offsets[0], ids = 0, features.ids
    for i in range(seconds.shape[0]):
        repeats = i > 0 and _repeats(program, ids, i, seconds[i] != seconds[i - 1])
        _fill_example(columns, program, features, i, seconds[i], repeats, scratch, filled)


@kernel
def fill_and_write(columns, gaining, active, program, features, labelled, scratch, filled):  # type: ignore[no-untyped-def]
    """Fill the histories of a batch, and write its clicks: those of a slate after all of it."""
    kinds, labels, ends = labelled.kinds, labelled.labels, labelled.ends
    shown_ms, event_ms, shift = labelled.shown_ms, labelled.event_ms, shift_of(active.shape[0])
    filled.offsets[0], ids = 0, features.ids
    begin = _FIRST
    while begin < kinds.shape[0]:
        end = ends[begin]
        for i in range(begin, end):
            before = shown_ms[i] // 1000
            repeats = i > begin and _repeats(program, ids, i, before != shown_ms[i - 1] // 1000)
            _fill_example(columns, program, features, i, before, repeats, scratch, filled)
        for i in range(begin, end):
            if kinds[i] == _SHOWN or not labels[i]:
                continue
            settled = kinds[i] == _CLOSED and event_ms[i] == shown_ms[i]  # not after a wait
            known_ms = event_ms[i] + (program.window_ms[0] if settled else 0)
            for h in range(program.users.shape[0]):
                user, item = ids[i, program.users[h]], ids[i, program.items[h]]
                number, last = program.numbers[h], program.lasts[h]
                # all slots of a user are in one bucket
                if (
                    not active[bucket_at(slot_id(user, number, 0), shift)]
                    or _is_absent(program, user)
                    or _is_absent(program, item)
                ):
                    continue
                clicked, second = item_id(item, number), known_ms // 1000
                write_click(columns, gaining, user, clicked, number, second, last, scratch)
        begin = end


@kernel
def list_slots(program, ids, slots, clicked):  # type: ignore[no-untyped-def]
    """Write the ids of the slots of each user, and of each item in a history.

    slots: (n * slots of all histories,). clicked: (n, histories).
    """
    at = 0
    for i in range(ids.shape[0]):
        for h in range(program.users.shape[0]):
            number = program.numbers[h]
            clicked[i, h] = item_id(ids[i, program.items[h]], number)
            for k in range(slots_of(program.lasts[h])):
                slots[at] = slot_id(ids[i, program.users[h]], number, k)
                at += 1
