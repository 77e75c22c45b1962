"""The arms of an experiment as lines of text: state, examples, difference to the control, reason.

A history has one record for each event. A line shows the state that follows from all records of an
arm: an arm that was found better stays `better`, although later records only score it.
"""

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.learner.experiments import ArmRecord

_CONTROL = 0
_OVER = ("stopped", "eliminated", "ended")


def table_of(history: "Sequence[ArmRecord]") -> Iterator[str]:
    """Yield a line for the experiment, and one or two for each arm, the control first."""
    told = [record for record in history if record.kind != "log"]
    by_arm: dict[int, list[ArmRecord]] = {}
    for record in told:
        by_arm.setdefault(record.arm, []).append(record)
    examples = max((record.examples for record in told), default=0)
    reached_ms = max((record.event_ms for record in told), default=0)
    over = sum(arm[-1].kind in _OVER for arm in by_arm.values())
    reached = f" up to {_at(reached_ms)}" if reached_ms else ""
    yield (
        f"{examples:,} examples{reached}; {len(by_arm)} arms with the control, "
        f"{len(by_arm) - over} of them learn"
    )
    for arm in sorted(by_arm.values(), key=_order):
        yield from _lines(arm, examples)


def _lines(arm: "Sequence[ArmRecord]", examples: int) -> Iterator[str]:
    """Yield the lines of an arm. examples: that the control has learned, which has no records."""
    last = arm[-1]
    if last.arm == _CONTROL:
        over = last.kind in _OVER
        reason = last.reason if over else "the others are compared with it"
        yield f"{last.name:12} {'control':10} {examples:>12,} examples  {'':32}  {reason}"
        return
    scored = next((each for each in reversed(arm) if each.difference is not None), last)
    state, reason = _state(arm)
    count = max(each.examples for each in arm)
    yield f"{last.name:12} {state:10} {count:>12,} examples  {_difference(scored):32}  {reason}"
    settings = next((each.settings for each in arm if each.settings), {})
    if settings:
        keys = ", ".join(f"{key} = {value}" for key, value in settings.items())
        yield f"{'':12} {keys}"


def _state(arm: "Sequence[ArmRecord]") -> tuple[str, str]:
    """Return the state of an arm, and the reason."""
    last = arm[-1]
    better = next((each for each in arm if each.kind == "better"), None)
    found = "" if better is None else f"{better.reason}, at {_at(better.event_ms)}"
    if last.kind in _OVER:
        rank, _, look = last.reason.partition("; ")
        if found:
            return last.kind, f"{rank}; {found}"
        return last.kind, f"{rank}; not decided: {look}" if look else rank
    if better is not None:
        return "better", found
    if len(arm) == 1:
        return "learns", "no batch is complete yet"
    return "learns", f"not decided: {last.reason}"


def _difference(record: "ArmRecord") -> str:
    if record.difference is None:
        return ""
    low, high = record.low, record.high
    band = f" ({low:+.5f} to {high:+.5f})" if low is not None and high is not None else ""
    return f"{record.difference:+.5f}{band}"


def _order(arm: "Sequence[ArmRecord]") -> tuple[bool, bool, float, int]:
    """Order by: the control, arms that learn, and the difference."""
    found = [each.difference for each in arm if each.difference is not None]
    difference = found[-1] if found else math.inf
    return arm[-1].arm != _CONTROL, arm[-1].kind in _OVER, difference, arm[-1].arm


def _at(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
