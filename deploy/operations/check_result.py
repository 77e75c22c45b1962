"""Defines the result of a check: severity, place, expected, found, and remedy."""

from dataclasses import dataclass
from enum import IntEnum

SUBJECTS = (
    "servers",
    "functions",
    "memory",
    "persistence",
    "replication",
    "cluster",
    "layout",
    "model",
    "buckets",
    "keepers",
    "kafka",
    "snapshots",
    "clocks",
)
"""Subjects of `doctor`, in the order of its output."""


class Severity(IntEnum):
    """Severity of a finding. The highest one is the exit status of `doctor`."""

    NOTE = 0
    """Information; may be intended."""
    WARNING = 1
    """Works now, but fails at an expected event such as a failover or full memory."""
    BROKEN = 2
    """A part does not work, or rows are wrong."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One finding."""

    severity: Severity
    subject: str
    """One of SUBJECTS."""
    where: str
    """A node, a bucket or the model."""
    expected: str
    found: str
    remedy: str
    """A command or a setting."""

    def __post_init__(self) -> None:
        if self.subject not in SUBJECTS:
            raise ValueError(f"expected one of {', '.join(SUBJECTS)}, got {self.subject!r}")
