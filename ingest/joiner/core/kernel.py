"""The compiled loop of the joiner core: takes events in the order of event time, makes examples.

The rules, and the reasons for them, are in `rules`. `_take_clicked` matches a click with an earlier
impression, and `_match_waiting_clicks` an impression with earlier clicks, which waited for it. Late
clicks are counted in `_take_clicked`, in `_count_click` and in `window_eviction.forget_clicks`.
"""

import numpy as np

from headrace.ingest.features.hashing import fmix64
from headrace.ingest.joiner.core.hash_index import NOWHERE, find_place, find_slot, place_in, put_in
from headrace.ingest.joiner.core.rules import (
    BLOCKED,
    CLICKED,
    CLICKED_CLOCK,
    CLICKS,
    CLOSED,
    DEAD_LETTERS,
    DROPPED_NEGATIVES,
    DUPLICATE_CLICKS,
    DUPLICATE_IMPRESSIONS,
    EVENT,
    EXAMPLES,
    FULL,
    GROW,
    IMPRESSIONS,
    LATE_CLICKS,
    MARGIN,
    NEEDED,
    NEVER,
    REFUSED,
    SHOWN,
    SHOWN_CLOCK,
    TICK,
    TICKS,
    UNMATCHED_CLICKS,
    WATERMARK,
)
from headrace.ingest.joiner.core.watermark import advance, floor_of, time_of
from headrace.ingest.joiner.core.window_eviction import (
    forget,
    forget_clicks,
    forget_everything,
    waits,
)
from headrace.ingest.joiner.core.window_state import (
    CLOCK_MS,
    SETTLED,
    TOO_LATE,
    WAITS,
    hold_click,
    hold_row,
    whole_clock,
)
from headrace.runtime.kernels.numba_kernels import inlined, kernel

_DRAWN_FROM = np.uint64(0xD1B54A32D192ED03)
"""An arbitrary constant, so that draws are independent of all other uses of the hash."""


@kernel
def run(rings, state, shown, rows, clicked, cursor, joined, rule):  # type: ignore[no-untyped-def]
    """Take events until blocked or full. `cursor`: next and end of both chunks."""
    while True:
        if max(joined.counts[0], joined.counts[1], joined.counts[2]) >= rule.limit:
            return FULL
        if _take_refused(state, shown, clicked, cursor, joined, rule):
            continue
        i, c = cursor[0], cursor[2]
        next_shown, next_clicked = _next_times(state, shown, clicked, cursor, rule)
        first, until_ms = min(next_shown, next_clicked), rule.until_ms
        takes_shown = i < cursor[1] and next_shown <= next_clicked
        takes_clicked = c < cursor[3] and next_clicked <= next_shown
        if takes_shown:
            until_ms = min(until_ms, floor_of(state, rule.at_end_ms, shown.append_ms[i]))
        elif takes_clicked:
            until_ms = min(until_ms, floor_of(state, rule.at_end_ms, clicked.append_ms[c]))
        answer = _sweep(rings, state, min(first, until_ms), joined, rule)
        if answer != BLOCKED:
            return answer
        if first > until_ms:
            return BLOCKED
        if takes_shown:
            _take_shown(rings, state, shown, rows, i, joined, rule)
            cursor[0] += 1
        elif takes_clicked:
            _take_clicked(rings, state, clicked, c, joined, rule)
            cursor[2] += 1
        else:
            return BLOCKED
        joined.counts[2] += 1


@inlined
def _next_times(state, shown, clicked, cursor, rule):  # type: ignore[no-untyped-def]
    """Return the event time of the next event of each source, or how far it may go without one."""
    i, c = cursor[0], cursor[2]
    has_shown, has_clicked = i < cursor[1], c < cursor[3]
    next_shown, next_clicked = rule.floor_shown, rule.floor_clicked
    if has_shown:
        next_shown = time_of(shown, i, rule.window_ms)
        if not has_clicked:
            next_clicked = floor_of(state, rule.floor_clicked, shown.append_ms[i])
    if has_clicked:
        next_clicked = time_of(clicked, c, rule.window_ms)
        if not has_shown:
            next_shown = floor_of(state, rule.floor_shown, clicked.append_ms[c])
    return next_shown, next_clicked


@inlined
def _take_refused(state, shown, clicked, cursor, joined, rule):  # type: ignore[no-untyped-def]
    for side in range(2):
        arrays = shown if side == 0 else clicked
        place = cursor[2 * side]
        if place < cursor[2 * side + 1] and arrays.roles[place] == REFUSED:
            _bury(state, side, place, joined, rule)
            cursor[2 * side] += 1
            joined.counts[2] += 1
            return True
    return False


@inlined
def _bury(state, side, place, joined, rule):  # type: ignore[no-untyped-def]
    if rule.silent:
        return
    joined.dead_sides[joined.counts[1]] = side
    joined.dead_places[joined.counts[1]] = place
    joined.counts[1] += 1
    state[DEAD_LETTERS] += 1


@inlined
def _emit(state, joined, kind, label, sequence, times, rule):  # type: ignore[no-untyped-def]
    """Make an example. `times`: of its event, its impression, its append."""
    if rule.silent:
        return
    at = joined.counts[0]
    joined.kinds[at] = kind
    joined.labels[at] = label
    joined.sequences[at] = sequence
    joined.event_ms[at], joined.shown_ms[at], joined.append_ms[at] = times
    joined.counts[0] += 1
    state[EXAMPLES] += 1


@inlined
def _drops(state, wanted, rule):  # type: ignore[no-untyped-def]
    """Whether down-sampling drops this negative: decided by the hash of the impression id alone."""
    if rule.silent or fmix64(wanted ^ _DRAWN_FROM) <= rule.keep_below:
        return False
    state[DROPPED_NEGATIVES] += 1
    return True


@inlined
def _sweep(rings, state, until_ms, joined, rule):  # type: ignore[no-untyped-def]
    """Make the examples whose wait ends before `until_ms`, and pass the windows that have ended."""
    answer = np.int64(BLOCKED)
    if rule.delay_ms > 0:
        answer = _make_waiting(rings, state, until_ms, joined, rule)
    entries, ends = rings.entries, rings.ends
    mask = entries.hashes.shape[0] - 1
    while ends.open_head[0] < ends.made_head[0]:
        if _is_open(entries, ends.open_head[0] & mask, state, rule):
            break
        ends.open_head[0] += 1
    return answer


@inlined
def _make_waiting(rings, state, until_ms, joined, rule):  # type: ignore[no-untyped-def]
    """Make the examples whose wait ends before `until_ms`, moving the watermark past each."""
    entries, ends = rings.entries, rings.ends
    mask = entries.hashes.shape[0] - 1
    if rule.silent:
        until_ms = state[WATERMARK]
    while ends.made_head[0] < ends.entry_tail[0]:
        lower = entries.clocks[ends.made_head[0] & mask]
        clock = whole_clock(lower, state[SHOWN_CLOCK])
        if clock + rule.delay_ms >= until_ms:
            break
        if rule.silent:
            ends.made_head[0] += 1
            continue
        # make all examples of one clock or none: the watermark alone tells which are made
        stop = ends.made_head[0]
        while stop < ends.entry_tail[0] and entries.clocks[stop & mask] == lower:
            stop += 1
        count = stop - ends.made_head[0]
        if joined.counts[0] + count + MARGIN > joined.kinds.shape[0]:
            state[NEEDED] = count
            return FULL if joined.counts[0] > 0 else GROW
        state[WATERMARK] = max(state[WATERMARK], clock + rule.delay_ms + 1)
        while ends.made_head[0] < stop:
            _make_next(rings, state, joined, rule)
        forget_clicks(rings, state, rule)
        if joined.counts[0] >= rule.limit:
            return FULL
    return BLOCKED


@inlined
def _make_next(rings, state, joined, rule):  # type: ignore[no-untyped-def]
    """Make the example of the first entry without one, by what is known of its click."""
    opened, sequence = rings.open, rings.ends.made_head[0]
    row = sequence & (opened.starts.shape[0] - 1)
    shown_ms, clicked = _shown_ms(rings, sequence, state), opened.clicked[row]
    kind = CLOSED if rule.closing or clicked else SHOWN
    event_ms = shown_ms if rule.closing else shown_ms + rule.delay_ms
    wanted = rings.entries.hashes[sequence & (rings.entries.hashes.shape[0] - 1)]
    if clicked or not _drops(state, wanted, rule):
        times = event_ms, shown_ms, opened.append_ms[row]
        _emit(state, joined, kind, clicked, sequence, times, rule)
    rings.ends.made_head[0] += 1


@inlined
def _take_shown(rings, state, shown, rows, i, joined, rule):  # type: ignore[no-untyped-def]
    time_ms = time_of(shown, i, rule.window_ms)
    advance(state, shown, i, time_ms)
    if shown.roles[i] == EVENT and time_ms < state[SHOWN_CLOCK] - rule.window_ms:
        _bury(state, 0, i, joined, rule)
        return
    if time_ms - state[SHOWN_CLOCK] >= CLOCK_MS // 2:
        forget_everything(rings)  # the lower halves of its clocks would become ambiguous
    state[SHOWN_CLOCK] = max(state[SHOWN_CLOCK], time_ms)
    forget(rings, state, rule)
    if shown.roles[i] == TICK:
        state[TICKS] += 1
        return
    entries, ends = rings.entries, rings.ends
    wanted, now_ms = shown.hashes[i], state[SHOWN_CLOCK]
    slot = find_slot(entries.slots, entries.hashes, wanted)
    place = place_in(entries.slots, entries.hashes, slot)
    if place != NOWHERE and _lives(entries, place, now_ms, rule):
        state[DUPLICATE_IMPRESSIONS] += 1
        clock = whole_clock(entries.clocks[place], now_ms)
        if entries.lasts[place] == entries.clocks[place] and clock < now_ms:
            ends.repeated[0] += 1
        entries.lasts[place] = np.uint32(now_ms & (CLOCK_MS - 1))
        _match_waiting_clicks(rings, state, wanted, _sequence(rings, place), now_ms, joined, rule)
        return
    repeat = _repeat(rings, wanted, state, rule)
    if repeat != NOWHERE:
        state[DUPLICATE_IMPRESSIONS] += 1
        rings.repeats.lasts[repeat] = now_ms
        _match_waiting_clicks(rings, state, wanted, np.int64(-1), now_ms, joined, rule)
        return
    if place != NOWHERE and entries.lasts[place] != entries.clocks[place]:
        ends.repeated[0] -= 1  # it is dead; the new impression takes its slot
        entries.lasts[place] = entries.clocks[place]
    _accept(rings, state, shown, rows, i, slot, joined, rule)


@inlined
def _accept(rings, state, shown, rows, i, slot, joined, rule):  # type: ignore[no-untyped-def]
    """Make event `i` the newest entry and store it in `slot`."""
    entries, ends, now_ms = rings.entries, rings.ends, state[SHOWN_CLOCK]
    wanted, sequence = shown.hashes[i], ends.entry_tail[0]
    place = sequence & (entries.hashes.shape[0] - 1)
    entries.hashes[place] = wanted
    entries.clocks[place] = np.uint32(now_ms & (CLOCK_MS - 1))
    entries.lasts[place] = entries.clocks[place]
    put_in(entries.slots, entries.hashes, slot, place)
    event_ms, append_ms = time_of(shown, i, rule.window_ms), shown.append_ms[i]
    hold_row(rings, rows, i, now_ms, event_ms, append_ms)
    ends.entry_tail[0] += 1
    state[IMPRESSIONS] += 1
    if rule.delay_ms == 0:
        _make_next(rings, state, joined, rule)
    _match_waiting_clicks(rings, state, wanted, sequence, now_ms, joined, rule)
    if rule.delay_ms > 0 and state[WATERMARK] > now_ms + rule.delay_ms:
        _make_next(rings, state, joined, rule)  # all earlier entries are made already


@inlined
def _shown_ms(rings, sequence, state):  # type: ignore[no-untyped-def]
    """Return the event time of the entry `sequence`."""
    place = sequence & (rings.entries.hashes.shape[0] - 1)
    row = sequence & (rings.open.starts.shape[0] - 1)
    clock = whole_clock(rings.entries.clocks[place], state[SHOWN_CLOCK])
    return clock + rings.open.later_ms[row]


@inlined
def _sequence(rings, place):  # type: ignore[no-untyped-def]
    newest = rings.ends.entry_tail[0] - 1
    return newest - ((newest - place) & (rings.entries.hashes.shape[0] - 1))


@inlined
def _repeat(rings, wanted, state, rule):  # type: ignore[no-untyped-def]
    """Return the place of a living repeat with this hash, or NOWHERE."""
    repeats = rings.repeats
    if rings.ends.repeat_head[0] == rings.ends.repeat_tail[0]:
        return np.int64(NOWHERE)
    place = find_place(repeats.slots, repeats.hashes, wanted)
    if place == NOWHERE or state[SHOWN_CLOCK] > repeats.lasts[place] + 2 * rule.window_ms:
        return np.int64(NOWHERE)
    return place


@inlined
def _lives(entries, place, now_ms, rule):  # type: ignore[no-untyped-def]
    return now_ms <= whole_clock(entries.lasts[place], now_ms) + 2 * rule.window_ms


@inlined
def _is_open(entries, place, state, rule):  # type: ignore[no-untyped-def]
    clock = whole_clock(entries.clocks[place], state[SHOWN_CLOCK])
    return state[WATERMARK] <= clock + rule.window_ms


@inlined
def _take_clicked(rings, state, clicked, c, joined, rule):  # type: ignore[no-untyped-def]
    time_ms = time_of(clicked, c, rule.window_ms)
    advance(state, clicked, c, time_ms)
    state[CLICKED_CLOCK] = max(state[CLICKED_CLOCK], time_ms)
    forget(rings, state, rule)
    if clicked.roles[c] == TICK:
        state[TICKS] += 1
        return
    state[CLICKS] += 1
    clock = state[CLICKED_CLOCK]
    entries, wanted = rings.entries, clicked.hashes[c]
    append_ms = clicked.append_ms[c]
    place, last = find_place(entries.slots, entries.hashes, wanted), np.int64(NEVER)
    met = place != NOWHERE and _lives(entries, place, state[SHOWN_CLOCK], rule)
    if met:
        last = whole_clock(entries.lasts[place], state[SHOWN_CLOCK])
        sequence = _sequence(rings, place)
    else:
        repeat = _repeat(rings, wanted, state, rule)
        met, sequence = repeat != NOWHERE, np.int64(-1)
        if met:
            last = rings.repeats.lasts[repeat]
    if met and clock <= last + rule.window_ms:
        _count_click(rings, state, sequence, clock, time_ms, append_ms, joined, rule)
    elif waits(state, clock, rule):
        fate = TOO_LATE if met else WAITS
        hold_click(rings.waiting, rings.ends, wanted, clock, time_ms, append_ms, fate)
    elif met:
        state[LATE_CLICKS] += 1
    else:
        state[UNMATCHED_CLICKS] += 1


@inlined
def _count_click(rings, state, sequence, clock, event_ms, append_ms, joined, rule):  # type: ignore[no-untyped-def]
    """Count a click of the entry `sequence`: learned, a duplicate, or late; -1 is a repeat."""
    entries, opened = rings.entries, rings.open
    if sequence < 0:
        state[LATE_CLICKS] += 1
        return
    place = sequence & (entries.hashes.shape[0] - 1)
    row = sequence & (opened.starts.shape[0] - 1)
    shown_clock = whole_clock(entries.clocks[place], state[SHOWN_CLOCK])
    if not _is_open(entries, place, state, rule) or clock < shown_clock - rule.window_ms:
        state[LATE_CLICKS] += 1
        return
    shown_ms = _shown_ms(rings, sequence, state)
    if abs(event_ms - shown_ms) > rule.window_ms:
        state[LATE_CLICKS] += 1
    elif opened.clicked[row]:
        state[DUPLICATE_CLICKS] += 1
    else:
        opened.clicked[row] = 1
        if sequence < rings.ends.made_head[0]:  # else its example gets the label
            _emit(state, joined, CLICKED, 1, sequence, (event_ms, shown_ms, append_ms), rule)


@inlined
def _match_waiting_clicks(rings, state, wanted, sequence, last, joined, rule):  # type: ignore[no-untyped-def]
    """Match the entry `sequence`, last seen now, with the clicks that wait, oldest first."""
    waiting = rings.waiting
    if rings.ends.waiting_head[0] == rings.ends.waiting_tail[0]:
        return
    until = last + rule.window_ms
    mask = waiting.hashes.shape[0] - 1
    click = find_place(waiting.slots, waiting.hashes, wanted)
    while click != NOWHERE:
        if waiting.fates[click] != SETTLED and waiting.clocks[click] > until:
            waiting.fates[click] = TOO_LATE
        elif waiting.fates[click] != SETTLED:
            waiting.fates[click] = SETTLED
            clock, event_ms = waiting.clocks[click], waiting.event_ms[click]
            append_ms = waiting.append_ms[click]
            _count_click(rings, state, sequence, clock, event_ms, append_ms, joined, rule)
        following = waiting.following[click]
        click = following & mask if following >= 0 else np.int64(NOWHERE)
