"""The arms of an experiment as lines of text: state, examples, difference to the control, reason.

A history has one record for each event. A line shows the state that follows from all records of an
arm (`arm_state`).
"""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from headrace.learner.experiments import OVER, arm_state, event_time

if TYPE_CHECKING:
    from headrace.learner.experiments import ArmRecord

_CONTROL = 0


def table_of(history: "Sequence[ArmRecord]") -> Iterator[str]:
    """Yield a line for the experiment, and one or two for each arm, the control first."""
    told = [record for record in history if record.kind != "log"]
    by_arm: dict[int, list[ArmRecord]] = {}
    for record in told:
        by_arm.setdefault(record.arm, []).append(record)
    examples = max((record.examples for record in told), default=0)
    reached_ms = max((record.event_ms for record in told), default=0)
    over = sum(arm[-1].kind in OVER for arm in by_arm.values())
    reached = f" up to {event_time(reached_ms)}" if reached_ms else ""
    yield (
        f"{examples:,} examples{reached}; {len(by_arm)} arms with the control, "
        f"{len(by_arm) - over} of them learning"
    )
    for arm in sorted(by_arm.values(), key=_order):
        yield from _lines(arm, examples)


def _lines(arm: "Sequence[ArmRecord]", examples: int) -> Iterator[str]:
    """Yield the lines of an arm. examples: learned by the control, which has no records of them."""
    last = arm[-1]
    if last.arm == _CONTROL:
        over = last.kind in OVER
        reason = last.reason if over else "the others are compared with it"
        yield f"{last.name:12} {'control':10} {examples:>12,} examples  {'':32}  {reason}"
        return
    scored = next((each for each in reversed(arm) if each.difference is not None), last)
    state, count, reason = arm_state(arm)
    yield f"{last.name:12} {state:10} {count:>12,} examples  {_difference(scored):32}  {reason}"
    settings = next((each.settings for each in arm if each.settings), {})
    if settings:
        keys = ", ".join(f"{key} = {value}" for key, value in settings.items())
        yield f"{'':12} {keys}"


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
    return arm[-1].arm != _CONTROL, arm[-1].kind in OVER, difference, arm[-1].arm
