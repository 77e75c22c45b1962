"""The history of an experiment: what was begun, compared and decided, with reasons.

It is deterministic: times are event times, so two runs over the same log with the same seed write
the same lines. A record is one JSON object.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from headrace.learner.experiments.experiment_file import ArmPlan

BEGUN, SCORED, RUNG, STOPPED, ELIMINATED, BETTER, ENDED = (
    *("begun", "scored", "rung", "stopped", "eliminated"),
    *("better", "ended"),
)


class ArmRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One event in the life of an arm."""

    kind: str
    """begun, scored (after a batch of event time), rung (goes on from it), stopped (at a rung),
    eliminated, better (may be promoted), ended (with the log); in the topic log, too (what a live
    experiment reads)."""
    arm: int
    name: str
    examples: int = 0
    """Learned by the arm since the begin of the log."""
    event_ms: int = 0
    """Event time that the log had reached."""
    settings: dict[str, Any] = {}
    loss: float | None = None
    """Mean log loss of the arm over all of its examples."""
    difference: float | None = None
    """Mean paired difference to the control."""
    low: float | None = None
    high: float | None = None
    """Bounds of the confidence sequence."""
    reason: str = ""


OVER = (STOPPED, ELIMINATED, ENDED)
"""Kinds of the last record of an arm that no longer learns."""


class ArmState(NamedTuple):
    """The state of an arm that follows from all of its records."""

    name: str
    """learning, better (it may be promoted, and learns on), stopped, eliminated, or ended."""
    examples: int
    """Learned at its last record."""
    reason: str


def arm_state(records: Sequence[ArmRecord]) -> ArmState:
    """Return the state of an arm from its records, oldest first.

    An arm that was found better stays so, although later records only score it.
    """
    last = records[-1]
    examples = max(each.examples for each in records)
    better = next((each for each in records if each.kind == BETTER), None)
    found = "" if better is None else f"{better.reason}, at {event_time(better.event_ms)}"
    if last.kind in OVER:
        rank, _, compared = last.reason.partition("; ")
        rest = found or (f"not decided: {compared}" if compared else "")
        return ArmState(last.kind, examples, f"{rank}; {rest}" if rest else rank)
    if better is not None:
        return ArmState(BETTER, examples, found)
    undecided = f"not decided: {last.reason}" if last.reason else "no batch is complete yet"
    return ArmState("learning", examples, undecided)


def event_time(time_ms: int) -> str:
    """Return an event time as text."""
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


class ExperimentProgress(NamedTuple):
    """Progress of an experiment."""

    read: float
    """Share of the log that the control has read, 0 to 1."""
    arms: int
    """Begun, the control aside."""
    learning: int
    """Arms that learn now, the control aside."""
    steps: int
    """Examples learned, all arms together."""


class EndedArm(NamedTuple):
    """An arm that ended, the control aside."""

    examples: int
    """Learned."""
    difference: float
    """Mean paired difference to the control; NaN without closed batches."""
    number: int


class ExperimentResult(NamedTuple):
    """The result of an experiment over a log."""

    best: ArmPlan
    """Among the arms that reached the end of the log; the control if it was best."""
    loss: float
    """Mean log loss of the best."""
    difference: float
    """Mean paired difference to the control."""
    promotable: bool
    """Whether the difference is proven: the best arm was found better at the end of a cycle."""
    control_loss: float
    steps: int
    """Examples learned, all arms and the control together."""
    examples: int
    """Of the log."""


def encoded(records: Iterable[ArmRecord]) -> bytes:
    """Return records as NDJSON."""
    return b"".join(msgspec.json.encode(each) + b"\n" for each in records)


def decoded(lines: bytes) -> list[ArmRecord]:
    """Return the records of NDJSON."""
    decode = msgspec.json.Decoder(ArmRecord).decode
    return [decode(line) for line in lines.splitlines()]
