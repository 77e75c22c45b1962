"""The history of an experiment: what was begun, compared and decided, with reasons.

It is deterministic: times are event times, so two runs over the same log with the same seed write
the same lines. A record is one JSON object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    """Mean paired difference to the control: since the rung before at rungs, else over all."""
    low: float | None = None
    high: float | None = None
    """Bounds of the confidence sequence."""
    reason: str = ""


def encoded(records: Iterable[ArmRecord]) -> bytes:
    """Return records as NDJSON."""
    return b"".join(msgspec.json.encode(each) + b"\n" for each in records)


def decoded(lines: bytes) -> list[ArmRecord]:
    """Return the records of NDJSON."""
    decode = msgspec.json.Decoder(ArmRecord).decode
    return [decode(line) for line in lines.splitlines()]
