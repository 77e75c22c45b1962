"""Folds a log of rows into minutes, exactly once, with all state in a table.

`Evaluator` folds messages (`messages.py`) in order. For each message it returns the writes to a
table, which must be applied in this order:

    rows/<offset>   the message as folded: its rows in minutes that are still open
    pane/<minute>   the summary of a closed minute
    state           the offset of this state, and the closed minutes
    past            one summary of all minutes that are older than any window

A message counts as folded if its `rows/` is in the table, or if `state` is past it. That is a
single write, so there is no state in between. Closing minutes takes several writes, and `state` is
decisive: a summary counts once `state` has closed its minute, and rows are removed only afterwards.
A process that restores the table after a crash, after any write, has therefore folded every message
once, and a repeated message changes nothing. The table must keep the order of writes, and a reader
must see a prefix of them. Nothing else is required.

Event time alone closes minutes. Each source (a partition of a topic) reports the time it has
reached. The smallest of these times, minus `wait_ms`, is the time that has passed. A source at its
end advances with the wall clock, but never jumps to "now". A replay that is faster than the
original events thus waits for the slowest reader. Wall time comes from the messages, and a long gap
between two of them counts for ten seconds at most: no time passes while no process evaluates.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.serving.evaluation import messages
from headrace.serving.evaluation import window_pane as panes
from headrace.serving.evaluation.messages import EvaluationRows, Table
from headrace.serving.evaluation.window_pane import OpenPane, PaneSummary, combine, summarize, whole

Mask = npt.NDArray[np.bool_]

_LONGEST_STEP_MS = 10_000
"""Longest wall time between two messages that counts; the rest is time without evaluation. A
source that is at its end after it, without a newer event, makes up for the rest."""
_CONFIRM_MS = 10_000
"""Time that a source must be at its end again before it makes up the time that it was not."""
_NEVER = -(1 << 62)
_STATE, _PAST, _ROWS, _PANE = "state", "past", "rows/", "pane/"


@dataclass(frozen=True, slots=True)
class EvaluationRules:
    """Rules that must be the same in all processes that evaluate a model."""

    fields: tuple[str, ...] = ()
    """Raw fields to slice by: those that the model spec keeps in the examples."""
    pane_ms: int = 60_000
    """The smallest window; all others consist of it."""
    wait_ms: int = 31 * 60_000
    """Time for clicks: the label's window, and a minute for events out of order."""
    hold_ms: int = 10 * 60_000
    """Longest time from a prediction to its impression."""
    keep_ms: int = 120 * 60_000
    """Retention of closed panes: twice the longest window, because drift compares two."""
    most_values: int = 20
    """Values per field with a slice of their own within a pane."""


class TableWrite(NamedTuple):
    """A change of the table."""

    key: str
    value: bytes | None
    """None: remove the key."""


class EvaluationState(msgspec.Struct, array_like=True):
    """State besides rows and panes."""

    offset: int = -1
    """The last folded message."""
    closed_ms: int = _NEVER
    """Minutes that begin before this are closed."""
    late: int = 0
    """Rows that arrived after their minute was closed."""
    standings: dict[str, tuple[int | None, int | None]] = {}
    """By source: the event time reached, and the observed time at which its end was reached."""
    now_ms: int | None = None
    """Wall time of the last message."""
    observed_ms: int = 0
    """Wall time that passed during evaluation."""
    first_ms: int | None = None
    """The first event time of any source: the start of a source that is still empty."""
    left: dict[str, tuple[int, int, int]] = {}
    """By source that left its end without a newer event, because its reader started again or
    evaluation paused: the event time it had reached, and the wall and observed time then."""


class ClosedMinutes(msgspec.Struct, array_like=True):
    """Summary of all minutes that are older than any window."""

    before_ms: int
    summary: bytes


class Evaluator:
    """Folds messages of rows. A minute is closed once all `sources` have passed it."""

    def __init__(self, rules: EvaluationRules, sources: Iterable[str]) -> None:
        self.rules = rules
        self._sources = frozenset(sources)
        self.state = EvaluationState()
        self.open: dict[int, OpenPane] = {}
        self.closed: dict[int, PaneSummary] = {}
        self.past = PaneSummary()
        self._past_before_ms = _NEVER
        self._needed_until_ms: dict[int, int] = {}  # by offset: removed once minutes are closed
        # by open minute: its last summary, and the row counts behind it
        self._summaries: dict[int, tuple[tuple[object, ...], PaneSummary]] = {}
        self._owed: list[TableWrite] = []

    def restore(self, table: Iterable[tuple[str, bytes]]) -> None:
        """Restore the state that this process or another wrote to the table."""
        found = dict(table)
        if _STATE in found:
            self.state = msgspec.msgpack.decode(found[_STATE], type=EvaluationState)
        if _PAST in found:
            past = msgspec.msgpack.decode(found[_PAST], type=ClosedMinutes)
            self.past, self._past_before_ms = panes.unpack(past.summary), past.before_ms
        saved = self.state.offset
        for key in sorted(found):
            if key.startswith(_PANE):
                begin = int(key.removeprefix(_PANE))
                if self._past_before_ms <= begin < self.state.closed_ms:
                    self.closed[begin] = panes.unpack(found[key])
                elif begin < self.state.closed_ms:
                    self._owed.append(TableWrite(key, None))
            elif key.startswith(_ROWS):
                offset, rows = int(key.removeprefix(_ROWS)), messages.unpack(found[key])
                # a later state includes the message's times and late rows
                self._take(offset, rows, in_state=offset <= saved)
        # repeat what a crash interrupted before folding new messages
        self._owed += self._drop_rows(saved)
        self._owed += self._forget(self.state.closed_ms - self.rules.keep_ms) + self._close()

    def fold(self, offset: int, message: bytes) -> list[TableWrite]:
        """Fold one message; return the writes in order.

        A message that was folded before changes nothing. Raises UnreadableRows.
        """
        writes, self._owed = self._owed, []
        if offset <= self.state.offset:
            return writes
        rows = self._in_time(messages.unpack(message))
        self._take(offset, rows, in_state=False)
        writes.append(TableWrite(f"{_ROWS}{offset:020d}", messages.pack(rows)))
        return writes + self._close()

    def summaries(self, enough: Callable[[], bool] = lambda: False) -> dict[int, PaneSummary]:
        """Return the current summary of each retained minute by its begin.

        An open minute is summarized again if it changed. Once `enough` returns True, the remaining
        minutes keep their last summary. The newest minute is always current, and the others take
        turns: the one with the oldest summary is next.
        """
        opened = [begin for begin in self.open if begin >= self.state.closed_ms]
        age = {begin: place for place, begin in enumerate(self._summaries)}
        newest = max(opened, default=None)
        found = {}
        for begin in sorted(opened, key=lambda each: (each != newest, age.get(each, -1))):
            known = self._summaries.get(begin)
            if known is None or begin == newest or not enough():
                found[begin] = self._summarize(begin, self.open[begin])
            else:
                found[begin] = known[1]
        return self.closed | dict(sorted(found.items()))

    def reached_ms(self) -> int | None:
        """Return the event time that all sources have passed; None before all have reported."""
        reached = []
        for source in self._sources:
            time_ms = self._reached_at_end(source)
            if time_ms is None:
                time_ms = self.state.standings.get(source, (None, None))[0]
            if time_ms is None:
                return None
            reached.append(time_ms)
        return min(reached, default=None)

    # ---------------------------------------------------------------- taking rows in

    def _in_time(self, rows: EvaluationRows) -> EvaluationRows:
        """Return the message without the rows of closed minutes."""
        closed = self.state.closed_ms
        shown, clicked, scored, served = rows.tables()
        on_time = [table["time_ms"] >= closed for table in (shown, clicked, scored, served)]
        if all(each.all() for each in on_time):
            return rows
        hashes = rows.slice_hashes(len(self.rules.fields))
        return msgspec.structs.replace(
            rows,
            shown=shown[on_time[0]].tobytes(),
            slices=hashes[on_time[0]].tobytes(),
            clicked=clicked[on_time[1]].tobytes(),
            scored=scored[on_time[2]].tobytes(),
            served=served[on_time[3]].tobytes(),
            late=sum(int((~each).sum()) for each in on_time),
        )

    def _take(self, offset: int, rows: EvaluationRows, *, in_state: bool) -> None:
        """Add the rows of a message to their minutes, except to closed ones."""
        shown, clicked, scored, served = rows.tables()
        hashes = rows.slice_hashes(len(self.rules.fields))
        closed, hold_ms = self.state.closed_ms, self.rules.hold_ms
        for begin, chosen in self._by_pane(shown, closed):
            pane = self._pane(begin, rows.sample)
            pane.shown.append(shown[chosen])
            pane.slices.append(hashes[chosen])
            pane.texts.update(rows.texts)
        for begin, chosen in self._by_pane(clicked, closed):
            self._pane(begin, rows.sample).clicked.append(clicked[chosen])
        for begin, chosen in self._by_pane(scored, closed):
            self._pane(begin, rows.sample).scored.append(scored[chosen])
        for begin, chosen in self._by_pane(served, closed - self.rules.pane_ms - hold_ms):
            by_alias = self._pane(begin, rows.sample).served
            for number, alias in enumerate(rows.series):
                mine = chosen & (served["series"] == number)
                if mine.any():
                    by_alias.setdefault(alias, []).append(served[mine])
        ends = [self._end_of_last(table) for table in (shown, clicked, scored)]
        self._needed_until_ms[offset] = max(*ends, self._end_of_last(served) + hold_ms)
        if not in_state:
            self._note(offset, rows)

    def _end_of_last(self, table: Table) -> int:
        """Return the end of the last minute with rows."""
        if not len(table):
            return _NEVER
        last = int(table["time_ms"].max())
        return last // self.rules.pane_ms * self.rules.pane_ms + self.rules.pane_ms

    def _note(self, offset: int, rows: EvaluationRows) -> None:
        """Record a message's sources, wall time and late rows."""
        state = self.state
        step = 0 if state.now_ms is None else rows.now_ms - state.now_ms
        observed_ms = state.observed_ms + min(max(step, 0), _LONGEST_STEP_MS)
        standings, first_ms = dict(state.standings), state.first_ms
        left = dict(state.left)
        paused = standings if step > _LONGEST_STEP_MS else ()
        for source in {*paused, *(each for each, (_, end) in rows.standings.items() if not end)}:
            reached_ms = self._reached_at_end(source)
            if reached_ms is not None and state.now_ms is not None:
                left.setdefault(source, (reached_ms, state.now_ms, observed_ms))
        for source, (time_ms, at_end) in rows.standings.items():
            before_ms, ended_ms = standings.get(source, (None, None))
            known = [each for each in (before_ms, time_ms) if each is not None]
            moved = time_ms is not None and (before_ms is None or time_ms > before_ms)
            if first_ms is None and known:
                first_ms = known[0]
            if moved:
                left.pop(source, None)
            if not at_end:
                ended_ms = None
            elif source in left and observed_ms - left[source][2] >= _CONFIRM_MS:
                reached_ms, wall_ms, _ = left.pop(source)
                now_ms = reached_ms + max(rows.now_ms - wall_ms, 0)
                ended_ms = observed_ms - (now_ms - max(known, default=first_ms or 0))
            elif ended_ms is None or moved:
                ended_ms = observed_ms
            standings[source] = (max(known, default=None), ended_ms)
        self.state = EvaluationState(
            offset,
            state.closed_ms,
            state.late + rows.late,
            standings,
            max(rows.now_ms, state.now_ms or rows.now_ms),
            observed_ms,
            first_ms,
            left,
        )

    def _reached_at_end(self, source: str) -> int | None:
        """Return the event time that a source at its end has reached; None if it is not there."""
        time_ms, ended_ms = self.state.standings.get(source, (None, None))
        start_ms = self.state.first_ms if time_ms is None else time_ms
        if ended_ms is None or start_ms is None:
            return None
        return start_ms + self.state.observed_ms - ended_ms

    def _pane(self, begin_ms: int, sample: float) -> OpenPane:
        pane = self.open.setdefault(begin_ms, OpenPane())
        pane.sample = min(pane.sample, sample)
        return pane

    def _by_pane(self, table: Table, least_ms: int) -> Iterator[tuple[int, Mask]]:
        """Yield each minute from `least_ms` on, with the mask of its rows."""
        begins = table["time_ms"] // self.rules.pane_ms * self.rules.pane_ms
        for begin in np.unique(begins[begins >= least_ms]).tolist():
            yield begin, begins == begin

    # ---------------------------------------------------------------- closing

    def _close(self) -> list[TableWrite]:
        """Close the minutes whose time for clicks is over; return the writes."""
        reached = self.reached_ms()
        if reached is None:
            return []
        size = self.rules.pane_ms
        closed_ms = (reached - self.rules.wait_ms) // size * size
        ready = [begin for begin in sorted(self.open) if begin < closed_ms]
        if closed_ms <= self.state.closed_ms or not (ready or self.closed):
            return []
        writes = []
        for begin in ready:
            if begin >= self.state.closed_ms:  # otherwise it is closed, and holds predictions only
                self.closed[begin] = self._summarize(begin, self.open[begin])
                writes.append(TableWrite(_key(begin), panes.pack(self.closed[begin])))
                self._summaries.pop(begin, None)
        self.state = msgspec.structs.replace(self.state, closed_ms=closed_ms)
        writes.append(TableWrite(_STATE, msgspec.msgpack.encode(self.state)))
        for begin in ready:
            if begin + size + self.rules.hold_ms <= closed_ms:
                del self.open[begin]
            else:
                self.open[begin] = OpenPane(served=self.open[begin].served)
        writes += self._drop_rows(self.state.offset)
        return writes + self._forget(closed_ms - self.rules.keep_ms)

    def _drop_rows(self, saved: int) -> list[TableWrite]:
        """Remove messages that are no longer needed, up to the offset of the written state."""
        done_ms = self.state.closed_ms
        needed = self._needed_until_ms.items()
        done = [each for each, until_ms in needed if until_ms <= done_ms and each <= saved]
        for offset in done:
            del self._needed_until_ms[offset]
        return [TableWrite(f"{_ROWS}{offset:020d}", None) for offset in done]

    def _forget(self, before_ms: int) -> list[TableWrite]:
        """Move minutes that no window needs any more to the past."""
        old = [begin for begin in sorted(self.closed) if begin < before_ms]
        if not old:
            return []
        self.past = combine([self.past, *(whole(self.closed.pop(begin)) for begin in old)])
        self._past_before_ms = before_ms
        past = ClosedMinutes(before_ms, panes.pack(self.past))
        writes = [TableWrite(_PAST, msgspec.msgpack.encode(past))]
        return writes + [TableWrite(_key(begin), None) for begin in old]

    def _summarize(self, begin_ms: int, pane: OpenPane) -> PaneSummary:
        latest_ms = begin_ms + self.rules.pane_ms  # an impression may precede its prediction
        near = [
            begin
            for begin in sorted(self.open)
            if begin_ms - self.rules.hold_ms <= begin <= latest_ms
        ]
        around = [self.open[begin] for begin in near]
        there: tuple[object, ...] = (
            pane.rows,
            *zip(near, (each.predictions for each in around), strict=True),
        )
        before = self._summaries.get(begin_ms)
        if before is not None and before[0] == there:
            return before[1]
        summary = summarize(pane, around, self.rules.fields, self.rules.most_values)
        self._summaries.pop(begin_ms, None)  # keep the dictionary in order of summarizing
        self._summaries[begin_ms] = there, summary
        return summary


def _key(begin_ms: int) -> str:
    return f"{_PANE}{begin_ms:020d}"
