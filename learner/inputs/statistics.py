"""Statistics of rows as inputs of a model: shows, clicks, click rate, age.

A statistic reads the counters of the row that a single-valued field names, cuts the value into
logarithmic buckets (its *level*), and the level, alone or crossed with others and with fields,
names a row whose weight is learned like any other.

The levels of an impression are taken once, when it is first seen, before its own show counts; its
click, minutes later, is learned with the same levels, which is why they are remembered
(`StatisticMemory`). Levels taken at the click would reveal the click. After a restart
the memory is empty, and a click's levels are taken from the rows less the impression's own show.

Such a level may differ from the one that the show was learned with, and so may the row. Therefore
the bucket of a statistic's id comes from what cannot differ (the number, and the ids of the fields
that it is crossed with), and only the lower bits from the levels: whichever row it is, the same
mark of the same bucket says whether the example was counted there. Bits of an id:

    63..48 of number and crossed fields | 47..10 of these and the levels | 9..0 number
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.learner.kernels.row_ids import mix
from headrace.learner.spec.statistics_spec import AGE, CLICK, RATE, SHOW
from headrace.runtime.kernels.numba_kernels import inlined, kernel

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


_NOTHING = np.int16(-32768)
"""Level of the age of a row that was never shown."""
_LEAST_LEVEL, _GREATEST_LEVEL = -32767.0, 32767.0
_HIGH = np.uint64(0xFFFF000000000000)
_MIDDLE = np.uint64(0x0000FFFFFFFFFC00)
_SEED = np.uint64(0x9E3779B97F4A7C15)


@inlined
def take_levels(program, columns, places, live, own_show, own_click, shown_s, levels):  # type: ignore[no-untyped-def]
    """Write the levels of one impression, from its present rows, to `levels`. Compiled.

    places: of the rows of its single-valued fields, -1 if missing. live: False where the
    example already counted in that row. The impression's own counts are left out: `own_show` of 1
    if it was already counted everywhere, `own_click` of 1 if it was clicked.
    """
    zero = np.int64(0)
    for i in range(program.kinds.shape[0]):
        field = program.fields[i]
        place = places[field]
        shows = clicks = age_s = zero
        if place >= 0:
            counted = zero if live[field] else np.int64(1)
            shows = max(np.int64(columns.shows[place]) - max(own_show, counted), zero)
            clicks = max(np.int64(columns.clicks[place]) - own_click * counted, zero)
            age_s = max(shown_s - np.int64(columns.first_seen[place]), zero)
        kind = program.kinds[i]
        if kind == AGE and shows == 0:
            levels[i] = _NOTHING
            continue
        if kind == SHOW:
            value = 1.0 + shows
        elif kind == CLICK:
            value = 1.0 + clicks
        elif kind == RATE:
            value = (clicks + program.prior_clicks[i]) / (shows + program.prior_shows[i])
        else:
            value = 1.0 + age_s
        level = math.floor(program.per_doubling[i] * math.log2(value))
        levels[i] = np.int16(min(max(level, _LEAST_LEVEL), _GREATEST_LEVEL))


@kernel
def statistic_id(program, statistic, levels, ids):  # type: ignore[no-untyped-def]
    """Return the id of one statistic, given the levels and the ids of the fields. Compiled."""
    number = program.numbers[statistic]
    fixed = mix(number + _SEED)
    varying = np.uint64(0)
    for k in range(program.starts[statistic], program.starts[statistic + 1]):
        part = program.parts[k]
        if part < 0:
            fixed = mix(fixed ^ ids[-1 - part])
        else:
            varying = mix((varying ^ np.uint64(np.int64(levels[part]) + 32769)) + _SEED)
    return (fixed & _HIGH) | (mix(fixed ^ varying) & _MIDDLE) | number


class StatisticMemory(NamedTuple):
    """Levels by impression, in two generations of hash slots, the younger and the older.

    A generation takes what is shown during one window of event time; when the next begins, the
    older is emptied. So levels are kept for one window at least and two at most. Levels, not ids:
    two bytes each, and the ids follow from them and the example.
    """

    keys: npt.NDArray[np.uint64]  # (2, 2^k) hash of the impression id, 0 if empty
    levels: npt.NDArray[np.int16]  # (2, 2^k, levels)
    counts: Integers  # (2,) impressions in each
    state: Integers  # (2,) the younger generation; the event time in ms when it began


def empty_memory(levels: int, slots: int = 1024) -> StatisticMemory:
    """Return a memory of nothing, for impressions of so many levels."""
    return StatisticMemory(
        np.zeros((2, slots), np.uint64),
        np.zeros((2, slots, levels), np.int16),
        np.zeros(2, np.int64),
        np.zeros(2, np.int64),
    )


def with_room(memory: StatisticMemory, more: int) -> StatisticMemory:
    """Return a memory of the same content that takes `more` impressions; perhaps the same one."""
    needed = 2 * (int(memory.counts.max()) + more)
    slots = memory.keys.shape[1]
    if needed <= slots:
        return memory
    while slots < needed:
        slots *= 2
    grown = empty_memory(memory.levels.shape[2], slots)
    _copy(memory, grown)
    return grown


@inlined
def _slot(keys, key):  # type: ignore[no-untyped-def]
    last = np.uint64(keys.shape[0] - 1)
    slot = mix(key) & last
    while keys[slot] != key and keys[slot] != 0:
        slot = (slot + np.uint64(1)) & last
    return np.int64(slot)


@kernel
def _copy(old, new):  # type: ignore[no-untyped-def]
    for generation in range(2):
        for slot in range(old.keys.shape[1]):
            key = old.keys[generation, slot]
            if key != 0:
                to = _slot(new.keys[generation], key)
                new.keys[generation, to] = key
                for k in range(old.levels.shape[2]):
                    new.levels[generation, to, k] = old.levels[generation, slot, k]
        new.counts[generation] = old.counts[generation]
        new.state[generation] = old.state[generation]


@kernel
def recall(memory, impression, levels):  # type: ignore[no-untyped-def]
    """Write the levels that were kept to `levels`; return whether there were any. Compiled."""
    key = max(impression, np.uint64(1))
    younger = memory.state[0]
    for generation in (younger, 1 - younger):
        slot = _slot(memory.keys[generation], key)
        if memory.keys[generation, slot] == key:
            for k in range(levels.shape[0]):
                levels[k] = memory.levels[generation, slot, k]
            return True
    return False


@kernel
def keep(memory, impression, levels, shown_ms, window_ms):  # type: ignore[no-untyped-def]
    """Remember levels. The caller made room, and knows that none are kept. Compiled."""
    if shown_ms >= memory.state[1] + window_ms:
        memory.state[0] = 1 - memory.state[0]
        memory.state[1] = shown_ms
        for slot in range(memory.keys.shape[1]):
            memory.keys[memory.state[0], slot] = 0
        memory.counts[memory.state[0]] = 0
    younger = memory.state[0]
    key = max(impression, np.uint64(1))
    slot = _slot(memory.keys[younger], key)
    memory.keys[younger, slot] = key
    for k in range(levels.shape[0]):
        memory.levels[younger, slot, k] = levels[k]
    memory.counts[younger] += 1
