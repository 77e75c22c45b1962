"""Evaluator as a function of a log of rows: which minutes are open, which are closed, and how.

`Evaluator` folds messages (`rows.py`) one after another and says, for each, what is to be written
to a table: in this order, keys and values of three kinds.

    rows/<offset>   the message as it was folded: its rows that belong to minutes still open
    pane/<minute>   the summary of a minute that is closed
    state           up to which offset this is, and which minutes are closed
    past            one summary of all minutes that are older than any window

A message is folded if and only if its `rows/` is in the table, or `state` is past it; that is one
write, so there is nothing in between. Closing minutes takes several writes and `state` decides:
summaries count once a `state` says that their minute is closed, and rows are removed only after it.
So whoever reads the table after a crash, at whatever write it came, has folded every message once,
and a message that comes again changes nothing. That the table is written in order, and that its
reader sees a beginning of what was written, is all that is asked of it.

When a minute is closed is a matter of event time alone. Each source (a partition of a topic) says
which time it has reached; the least of them, less `wait`, is what has passed. A source at its end
is taken to go on as wall time does, never to "now", so history that is replayed faster than it
happened waits for the slowest reader. Wall time is what the messages say it was, and a gap between
two of them counts for little: while nobody evaluates, no time passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from headrace.serving.evaluation import messages
from headrace.serving.evaluation import window_pane as panes
from headrace.serving.evaluation.messages import CLICKED, SCORED, SERVED, SHOWN, EvaluationRows
from headrace.serving.evaluation.window_pane import OpenPane, PaneSummary, combine, summarize, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy.typing as npt

    from headrace.serving.evaluation.messages import Table

    Mask = npt.NDArray[np.bool_]

_LONGEST_STEP_MS = 10_000
"""Of wall time between two messages: more is the time that nobody evaluated."""
_NEVER = -(1 << 62)
_STATE, _PAST, _ROWS, _PANE = "state", "past", "rows/", "pane/"


@dataclass(frozen=True, slots=True)
class EvaluationRules:
    """What must be the same for every process that evaluates a model."""

    fields: tuple[str, ...] = ()
    """Raw fields to slice by: those that the model spec keeps in the examples."""
    pane_ms: int = 60_000
    """The least window; all others are made of it."""
    wait_ms: int = 31 * 60_000
    """Until a click must have come: the label's window, and a minute for events out of order."""
    hold_ms: int = 10 * 60_000
    """From a prediction to its impression, at most."""
    keep_ms: int = 120 * 60_000
    """Closed panes are kept so long: twice the longest window, since drift compares two."""
    most_values: int = 20
    """Of each field are told apart within a pane."""


class TableWrite(NamedTuple):
    """A change of the table."""

    key: str
    value: bytes | None
    """None: remove the key."""


class EvaluationState(msgspec.Struct, array_like=True):
    """What is known besides rows and panes."""

    offset: int = -1
    """The last message in it."""
    closed_ms: int = _NEVER
    """Minutes that begin before this are closed."""
    late: int = 0
    """EvaluationRows that came when their minute was closed."""
    standings: dict[str, tuple[int | None, int | None]] = {}
    """Of each source the time it has reached, and the observed time at which it came to its end."""
    now_ms: int | None = None
    """Wall time of the last message."""
    observed_ms: int = 0
    """Wall time that passed while somebody evaluated."""
    first_ms: int | None = None
    """The first event time that any source had reached: where one begins that had nothing yet."""


class ClosedMinutes(msgspec.Struct, array_like=True):
    """All that is older than any window."""

    before_ms: int
    summary: bytes


class Evaluator:
    """Folds messages of rows; `sources` are all that a minute waits for before it is closed."""

    def __init__(self, rules: EvaluationRules, sources: Iterable[str]) -> None:
        self.rules = rules
        self._sources = frozenset(sources)
        self.state = EvaluationState()
        self.open: dict[int, OpenPane] = {}
        self.closed: dict[int, PaneSummary] = {}
        self.past = PaneSummary()
        self._past_before_ms = _NEVER
        self._needed_until_ms: dict[int, int] = {}  # by offset: closed so far, it may go
        # of open minutes as they were last summed, and what was summed
        self._summaries: dict[int, tuple[tuple[object, ...], PaneSummary]] = {}
        self._owed: list[TableWrite] = []

    def restore(self, table: Iterable[tuple[str, bytes]]) -> None:
        """Go on from what was written to the table, by this process or another."""
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
                # what it says of time and of late rows is in the state, if that is later
                self._take(offset, rows, in_state=offset <= saved)
        # what a crash cut short is done again before anything else is folded
        self._owed += self._drop_rows(saved)
        self._owed += self._forget(self.state.closed_ms - self.rules.keep_ms) + self._close()

    @property
    def late(self) -> int:
        """EvaluationRows that came when their minute was closed."""
        return self.state.late

    @property
    def folded(self) -> int:
        """The last offset that was folded; -1: none."""
        return self.state.offset

    def fold(self, offset: int, message: bytes) -> list[TableWrite]:
        """Fold one message; return what is to be written, in this order.

        Nothing is folded if the message was. Raises UnreadableRows.
        """
        writes, self._owed = self._owed, []
        if offset <= self.state.offset:
            return writes
        rows = self._in_time(messages.unpack(message))
        self._take(offset, rows, in_state=False)
        writes.append(TableWrite(f"{_ROWS}{offset:020d}", messages.pack(rows)))
        return writes + self._close()

    def summaries(self, enough: Callable[[], bool] = lambda: False) -> dict[int, PaneSummary]:
        """Return the summary of each minute as it stands, by its begin; not of those long past.

        An open minute is summed anew if it changed. Once there is `enough` of that, those that are
        left stand as they were summed before: the newest minute is never one of them, and the next
        to be summed is the one that waits longest.
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
        """Return the event time that all sources have passed; None while one was not heard of."""
        reached = []
        for source in self._sources:
            time_ms, ended_ms = self.state.standings.get(source, (None, None))
            if time_ms is None:
                if ended_ms is None or self.state.first_ms is None:
                    return None
                time_ms = self.state.first_ms
            if ended_ms is not None:
                time_ms += self.state.observed_ms - ended_ms
            reached.append(time_ms)
        return min(reached, default=None)

    # ---------------------------------------------------------------- taking rows in

    def _in_time(self, rows: EvaluationRows) -> EvaluationRows:
        """Return the message without the rows whose minute is closed."""
        closed = self.state.closed_ms
        shown, clicked, scored, served = _tables(rows)
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
        """Put the rows of a message into their minutes, but for those of minutes closed since."""
        shown, clicked, scored, served = _tables(rows)
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
            made = self._pane(begin, rows.sample).served
            for number, alias in enumerate(rows.series):
                mine = chosen & (served["series"] == number)
                if mine.any():
                    made.setdefault(alias, []).append(served[mine])
        ends = [self._end_of_last(table) for table in (shown, clicked, scored)]
        self._needed_until_ms[offset] = max(*ends, self._end_of_last(served) + hold_ms)
        if not in_state:
            self._note(offset, rows)

    def _end_of_last(self, table: Table) -> int:
        """Return the end of the last minute that there are rows of."""
        if not len(table):
            return _NEVER
        last = int(table["time_ms"].max())
        return last // self.rules.pane_ms * self.rules.pane_ms + self.rules.pane_ms

    def _note(self, offset: int, rows: EvaluationRows) -> None:
        """Take in what a message says of its sources, of wall time, and of rows left out."""
        state = self.state
        step = 0 if state.now_ms is None else rows.now_ms - state.now_ms
        observed_ms = state.observed_ms + min(max(step, 0), _LONGEST_STEP_MS)
        standings, first_ms = dict(state.standings), state.first_ms
        for source, (time_ms, at_end) in rows.standings.items():
            before_ms, ended_ms = standings.get(source, (None, None))
            known = [each for each in (before_ms, time_ms) if each is not None]
            moved = time_ms is not None and (before_ms is None or time_ms > before_ms)
            if first_ms is None and known:
                first_ms = known[0]
            if not at_end:
                ended_ms = None
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
        )

    def _pane(self, begin_ms: int, sample: float) -> OpenPane:
        pane = self.open.setdefault(begin_ms, OpenPane())
        pane.sample = min(pane.sample, sample)
        return pane

    def _by_pane(self, table: Table, least_ms: int) -> Iterator[tuple[int, Mask]]:
        """Yield the minutes that the rows are of, from one on, and which rows each has."""
        begins = table["time_ms"] // self.rules.pane_ms * self.rules.pane_ms
        for begin in np.unique(begins[begins >= least_ms]).tolist():
            yield begin, begins == begin

    # ---------------------------------------------------------------- closing

    def _close(self) -> list[TableWrite]:
        """Close the minutes whose clicks must have come; return what is to be written."""
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
            if begin >= self.state.closed_ms:  # else only its predictions were held
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
        """Remove the messages that nobody needs, of those up to the offset of the written state."""
        done_ms = self.state.closed_ms
        needed = self._needed_until_ms.items()
        done = [each for each, until_ms in needed if until_ms <= done_ms and each <= saved]
        for offset in done:
            del self._needed_until_ms[offset]
        return [TableWrite(f"{_ROWS}{offset:020d}", None) for offset in done]

    def _forget(self, before_ms: int) -> list[TableWrite]:
        """Add to the past what no window needs any more."""
        old = [begin for begin in sorted(self.closed) if begin < before_ms]
        if not old:
            return []
        self.past = combine([self.past, *(whole(self.closed.pop(begin)) for begin in old)])
        self._past_before_ms = before_ms
        past = ClosedMinutes(before_ms, panes.pack(self.past))
        writes = [TableWrite(_PAST, msgspec.msgpack.encode(past))]
        return writes + [TableWrite(_key(begin), None) for begin in old]

    def _summarize(self, begin_ms: int, pane: OpenPane) -> PaneSummary:
        latest_ms = begin_ms + self.rules.pane_ms  # an impression may be a little before its answer
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
        made = summarize(pane, around, self.rules.fields, self.rules.most_values)
        self._summaries.pop(begin_ms, None)  # the last to be summed is the last in the dictionary
        self._summaries[begin_ms] = there, made
        return made


def _tables(rows: EvaluationRows) -> tuple[Table, Table, Table, Table]:
    return (
        rows.table(SHOWN, rows.shown),
        rows.table(CLICKED, rows.clicked),
        rows.table(SCORED, rows.scored),
        rows.table(SERVED, rows.served),
    )


def _key(begin_ms: int) -> str:
    return f"{_PANE}{begin_ms:020d}"
