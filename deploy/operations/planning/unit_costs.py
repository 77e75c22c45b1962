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
from headrace.undecodable import UNDECODABLE

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


class LogCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cost of entries of logs and of the rows in them."""

    row: LinearCost
    """A row, by floats."""
    entry_us: float
    """An entry without its rows."""

    def cores(self, width: float, rows: float, entries: float) -> float:
        """Return busy cores for so many rows and entries in a second."""
        return 1e-6 * (rows * self.row.at(width) + entries * self.entry_us)


class UnitCosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Processor time of one event, row or candidate, in microseconds."""

    source: str
    """The machine and the time of the measurement."""
    join: LinearCost
    """An event in the joiner, by fields."""
    learn: dict[str, LinearCost]
    """An example in a learner, by architecture and by fields, without pushes."""
    score: dict[str, LinearCost]
    """A candidate in a server, by architecture and by fields, from JSON to JSON."""
    push: LogCost
    """Rows and entries that a learner pushes."""
    follow: LogCost
    """Rows and entries that a replica reads and adds to its rows."""
    refresh: LogCost
    """The same in a learner's view."""
    keep: LinearCost
    """A row that a keeper writes, by floats, without following."""
    store_push: LogCost
    """A push in the parameter server."""
    store_read: LogCost
    """Rows and entries that one follower reads, in the parameter server."""
    store_fold: LinearCost
    """A row that a keeper writes, by floats, in the parameter server."""
    stored_bytes: LinearCost
    """Bytes (not microseconds) of a row in the parameter server, by floats."""
    request_us: float = 130.0
    """A request in a server, without its candidates: HTTP. From `docs/benchmarks.md`, Serving."""
    kafka_event_us: float = 0.0
    """An event in the Kafka clients of the joiner."""
    kafka_example_us: float = 0.0
    """An example in the Kafka clients of the joiner and of a learner, each."""
    idle_cores: dict[str, float] = {}
    """Busy cores of a process that has nothing to do, by part."""
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
    except (OSError, *UNDECODABLE) as error:
        raise DeployError(
            f"{path}: expected constants of `headrace calibrate`, found: {error}"
        ) from error
    if found.format != FORMAT:
        raise DeployError(
            f"{path}: expected format {FORMAT}, got {found.format}; run `headrace calibrate` again"
        )
    return found
