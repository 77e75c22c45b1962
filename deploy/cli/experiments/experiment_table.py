"""The arms of an experiment as text: a table of their figures, then their settings and reasons.

A history has one record for each event. A row shows the state that follows from all records of an
arm (`arm_state`). The table fits into 80 columns. Settings and reasons can be longer, so they are
below it.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from headrace.deploy.terminal.wrapped_text import wrapped
from headrace.learner.experiments.history import OVER, ArmRecord, arm_state, event_time
from headrace.runtime.counted_nouns import counted

_CONTROL = 0
_HEADER = ("arm", "state", "examples", "difference", "confidence sequence")
_TEXTS = (0, 1, 4)
"""Columns that are aligned to the left."""
_GAP = "  "


class _Shown(NamedTuple):
    """The texts of an arm."""

    row: tuple[str, ...]
    """Texts of the columns of the table."""
    settings: str
    reason: str


def table_of(history: "Sequence[ArmRecord]", columns: int | None) -> Iterator[str]:
    """Yield the lines, the control first. columns: the width of the terminal; None: a pipe."""
    told = [record for record in history if record.kind != "log"]
    by_arm: dict[int, list[ArmRecord]] = {}
    for record in told:
        by_arm.setdefault(record.arm, []).append(record)
    examples = max((record.examples for record in told), default=0)
    reached_ms = max((record.event_ms for record in told), default=0)
    learning = sum(arm[-1].kind not in OVER for arm in by_arm.values())
    reached = f" up to {event_time(reached_ms)}" if reached_ms else ""
    yield f"{counted(examples, 'example')}{reached}"
    yield f"{counted(len(by_arm), 'arm')} with the control, {learning} of them learning"
    if not by_arm:
        return
    shown = [_shown(arm, examples) for arm in sorted(by_arm.values(), key=_order)]
    yield ""
    yield from _table([_HEADER, *(each.row for each in shown)], columns)
    yield ""
    for each in shown:
        if each.settings:
            yield wrapped(f"{each.row[0]}: {each.settings}", columns)
            yield wrapped(f"{_GAP}{each.reason}", columns)
        else:
            yield wrapped(f"{each.row[0]}: {each.reason}", columns)


def _table(rows: Sequence[tuple[str, ...]], columns: int | None) -> Iterator[str]:
    """Yield the lines of a table. A name that does not fit has a line of its own."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if columns is not None:
        others = sum(len(_GAP) + width for width in widths[1:])
        widths[0] = min(widths[0], max(columns - others, len(_HEADER[0])))
    for name, *others_of_row in rows:
        fits = len(name) <= widths[0]
        if not fits:
            yield name
        cells = [name if fits else "", *others_of_row]
        yield _GAP.join(
            f"{cell:{'<' if place in _TEXTS else '>'}{width}}"
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()


def _shown(arm: "Sequence[ArmRecord]", examples: int) -> _Shown:
    """Return the texts of an arm.

    examples: learned by the control, which has no records of them.
    """
    last = arm[-1]
    if last.arm == _CONTROL:
        reason = last.reason if last.kind in OVER else "the others are compared with it"
        return _Shown((last.name, "control", f"{examples:,}", "", ""), "", reason)
    scored = next((each for each in reversed(arm) if each.difference is not None), last)
    state, count, reason = arm_state(arm)
    settings = next((each.settings for each in arm if each.settings), {})
    keys = ", ".join(f"{key} = {value}" for key, value in settings.items())
    return _Shown((last.name, state, f"{count:,}", *_difference(scored)), keys, reason)


def _difference(record: "ArmRecord") -> tuple[str, str]:
    """Return the difference and the bounds of its confidence sequence, if they are known."""
    if record.difference is None:
        return "", ""
    low, high = record.low, record.high
    band = f"{low:+.5f} to {high:+.5f}" if low is not None and high is not None else ""
    return f"{record.difference:+.5f}", band


def _order(arm: "Sequence[ArmRecord]") -> tuple[bool, bool, float, int]:
    """Order by: the control, arms that learn, and the difference."""
    found = [each.difference for each in arm if each.difference is not None]
    difference = found[-1] if found else math.inf
    return arm[-1].arm != _CONTROL, arm[-1].kind in OVER, difference, arm[-1].arm
