"""What a check found: how bad, what was expected, what is there, where, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

SUBJECTS = (
    *("servers", "functions", "memory", "persistence", "replication", "cluster", "layout"),
    *("model", "buckets", "keepers", "kafka", "clocks"),
)
"""What `doctor` looks at, in the order in which it says so."""


class Severity(IntEnum):
    """How bad; the number is what `doctor` exits with when nothing is worse."""

    NOTE = 0
    """Good to know; may be meant so."""
    WARNING = 1
    """Works now. Something that will happen (a failover, a full memory) will not go well."""
    BROKEN = 2
    """Part of it does not work, or its rows are not what they should be."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One thing that is not as it should be."""

    severity: Severity
    subject: str
    """One of SUBJECTS."""
    where: str
    """A node, a bucket, the model."""
    expected: str
    found: str
    remedy: str
    """A command or a setting."""

    def __post_init__(self) -> None:
        if self.subject not in SUBJECTS:
            raise ValueError(f"expected one of {', '.join(SUBJECTS)}, found {self.subject!r}")
