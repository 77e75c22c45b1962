"""Eviction from the window state as event time advances; compiled. The rules are in `rules`."""

from headrace.ingest.joiner.core.hash_index import (
    clear_all,
    clear_slot,
    find_slot,
    place_in,
    put_in,
)
from headrace.ingest.joiner.core.rules import LATE_CLICKS, SHOWN_CLOCK, UNMATCHED_CLICKS, WATERMARK
from headrace.ingest.joiner.core.window_state import (
    TOO_LATE,
    WAITS,
    drop_oldest_click,
    whole_clock,
)
from headrace.runtime.kernels.numba_kernels import inlined


@inlined
def forget(rings, state, rule):  # type: ignore[no-untyped-def]
    """Evict impressions that no longer live, and clicks that waited too long."""
    _forget_entries(rings, state, rule)
    forget_clicks(rings, state, rule)


@inlined
def forget_clicks(rings, state, rule):  # type: ignore[no-untyped-def]
    """Evict clicks that waited too long; call this whenever a clock has moved.

    A restart reads again the clicks that wait at the checkpoint's clocks, without counting. An
    expired click that was not evicted before the checkpoint would never be counted.
    """
    waiting, ends = rings.waiting, rings.ends
    mask = waiting.hashes.shape[0] - 1
    while ends.waiting_head[0] < ends.waiting_tail[0]:
        place = ends.waiting_head[0] & mask
        if waits(state, waiting.clocks[place], rule):
            break
        if waiting.fates[place] == WAITS:
            state[UNMATCHED_CLICKS] += 1
        elif waiting.fates[place] == TOO_LATE:
            state[LATE_CLICKS] += 1
        drop_oldest_click(waiting, ends)


@inlined
def waits(state, clock, rule):  # type: ignore[no-untyped-def]
    """Whether a click of this clock still waits for its impression."""
    return (
        state[SHOWN_CLOCK] <= clock + rule.window_ms
        and state[WATERMARK] <= clock + 2 * rule.window_ms
    )


@inlined
def _forget_entries(rings, state, rule):  # type: ignore[no-untyped-def]
    entries, repeats, ends = rings.entries, rings.repeats, rings.ends
    now_ms = state[SHOWN_CLOCK]
    before = now_ms - 2 * rule.window_ms
    mask = entries.hashes.shape[0] - 1
    while ends.entry_head[0] < ends.open_head[0]:
        place = ends.entry_head[0] & mask
        if whole_clock(entries.clocks[place], now_ms) >= before:
            break
        slot = find_slot(entries.slots, entries.hashes, entries.hashes[place])
        if place_in(entries.slots, entries.hashes, slot) == place:  # else its id was reused
            clear_slot(entries.slots, entries.hashes, slot)
        if entries.lasts[place] != entries.clocks[place]:
            ends.repeated[0] -= 1
            last = whole_clock(entries.lasts[place], now_ms)
            if last >= before:
                _put_repeat(rings, state, entries.hashes[place], last)
        ends.entry_head[0] += 1
    mask = repeats.hashes.shape[0] - 1
    while ends.repeat_head[0] < ends.repeat_tail[0]:
        place = ends.repeat_head[0] & mask
        if repeats.clocks[place] >= before:
            break
        wanted, last = repeats.hashes[place], repeats.lasts[place]
        slot = find_slot(repeats.slots, repeats.hashes, wanted)
        if place_in(repeats.slots, repeats.hashes, slot) == place:
            clear_slot(repeats.slots, repeats.hashes, slot)
        ends.repeat_head[0] += 1
        if last >= before:
            _put_repeat(rings, state, wanted, last)


@inlined
def _put_repeat(rings, state, wanted, last):  # type: ignore[no-untyped-def]
    repeats, ends = rings.repeats, rings.ends
    place = ends.repeat_tail[0] & (repeats.hashes.shape[0] - 1)
    repeats.hashes[place] = wanted
    repeats.clocks[place] = state[SHOWN_CLOCK]
    repeats.lasts[place] = last
    put_in(repeats.slots, repeats.hashes, find_slot(repeats.slots, repeats.hashes, wanted), place)
    ends.repeat_tail[0] += 1


@inlined
def forget_everything(rings):  # type: ignore[no-untyped-def]
    """Evict all impressions: after so large a jump of the clock none is open or lives."""
    ends = rings.ends
    clear_all(rings.entries.slots)
    clear_all(rings.repeats.slots)
    ends.entry_head[0] = ends.open_head[0] = ends.made_head[0] = ends.entry_tail[0]
    ends.repeat_head[0] = ends.repeat_tail[0]
    ends.repeated[0] = 0
