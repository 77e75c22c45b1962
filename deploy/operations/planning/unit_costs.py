"""Processor time and memory of single steps: the constants of a plan.

`headrace calibrate` measures them on a machine and writes them to a JSON file. Times are
microseconds of processor time, not of the clock, so that a busy machine changes them less.

A cost that depends on the number of fields, or of floats in a row, is a straight line through two
measurements.
"""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  (msgspec reads annotations)

import msgspec

from headrace.deploy.errors import DeployError

FORMAT = 1


class LinearCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cost that grows with a number: of fields, or of floats in a row."""

    fixed_us: float
    each_us: float

    def __post_init__(self) -> None:
        if not (0.0 <= self.fixed_us < 1e9 and 0.0 <= self.each_us < 1e9):
            raise ValueError(f"expected times of 0 or more, got {self.fixed_us}, {self.each_us}")

    def at(self, number: float) -> float:
        """Return microseconds."""
        return self.fixed_us + self.each_us * number


class UnitCosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Processor time of one event, row or candidate, in microseconds."""

    source: str
    """The machine and the time of the measurement."""
    join: LinearCost
    """An event in the joiner, by fields."""
    learn: dict[str, LinearCost]
    """An example in a learner, by architecture and by fields, without pushes."""
    score: dict[str, LinearCost]
    """A candidate in a server, by architecture and by fields."""
    request_us: float
    """A request in a server, without its candidates."""
    pack: LinearCost
    """A row in a learner's push, by floats."""
    follow: LinearCost
    """A pushed row in a replica that follows the logs, by floats."""
    refresh: LinearCost
    """The same row in a learner's view, by floats."""
    store_push: LinearCost
    """A pushed row in the parameter server, by floats."""
    keep: LinearCost
    """A folded row in a keeper, by floats, without following."""
    store_fold: LinearCost
    """A folded row in the parameter server, by floats."""
    store_read_us_per_mb: float
    """A megabyte of the logs that a follower reads, in the parameter server."""
    stored_bytes: LinearCost
    """Bytes (not microseconds) of a row in the parameter server, by floats."""
    format: int = FORMAT

    def of(self, costs: dict[str, LinearCost], architecture: str) -> LinearCost:
        """Return the cost for an architecture. Raises DeployError if it was not measured."""
        if architecture not in costs:
            raise DeployError(
                f"constants of {self.source}: expected one of the architectures "
                f"{', '.join(sorted(costs))}, got {architecture!r}; measure it with "
                f"`headrace calibrate --architecture {architecture}`"
            )
        return costs[architecture]


def read_unit_costs(path: Path) -> UnitCosts:
    """Return the constants in a file that `headrace calibrate` wrote. Raises DeployError."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=UnitCosts)
    except (OSError, msgspec.DecodeError) as error:
        raise DeployError(
            f"{path}: expected constants of `headrace calibrate`, found: {error}"
        ) from error
    if found.format != FORMAT:
        raise DeployError(
            f"{path}: expected format {FORMAT}, got {found.format}; run `headrace calibrate` again"
        )
    return found
