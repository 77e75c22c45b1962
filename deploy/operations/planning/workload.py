"""The load, the machines and the prices that a plan is made for."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from headrace.deploy.errors import BadOption, DeployError

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Workload:
    """Events, requests and the model."""

    events_per_second: float
    """Impressions and clicks together."""
    rows: float
    """Rows of the model."""
    fields: int
    """Inputs of an example; each is one row."""
    architecture: str
    width: int
    """Floats per row."""
    regions: int = 1
    """Every region has servers; the first one has everything else too."""
    requests_per_second: float = 1.0
    """In all regions together."""
    candidates: float = 100.0
    """In a request."""
    skew: float = 1.1
    """Exponent of the law by which values of a field occur."""
    push_interval_ms: float = 50.0
    """Milliseconds between two pushes of a learner."""
    buckets: int = 64
    """Buckets of the model; each has an entry in every push."""
    keep_interval_ms: float = 60_000.0
    """Milliseconds that a keeper leaves entries in the log: a row is written once in this time."""
    keep_bucket_bytes: float = 8 << 20
    """Most bytes of a bucket's log. The log is kept for a shorter time if it grows faster."""
    label_window_s: float = 600.0
    """Seconds for which the joiner keeps an impression."""
    event_bytes: float = 380.0
    """Bytes of an event in Kafka."""
    kafka_copies: int = 3
    store_copies: int = 2
    """Copies of each row in the parameter server: a primary and its replicas."""

    def __post_init__(self) -> None:
        for name in ("events_per_second", "rows", "requests_per_second", "candidates"):
            if not 0.0 < getattr(self, name) < 1e15:
                _refuse(name, "a number above 0 and below 1e15", getattr(self, name))
        for name in ("push_interval_ms", "keep_interval_ms", "keep_bucket_bytes", "event_bytes"):
            if not 0.0 < getattr(self, name) < 1e9:
                _refuse(name, "a number above 0 and below 1e9", getattr(self, name))
        for name in ("fields", "width", "buckets", "regions", "kafka_copies", "store_copies"):
            if not 1 <= getattr(self, name) <= 65_536:
                _refuse(name, "a number from 1 to 65,536", getattr(self, name))
        if not 0.0 <= self.skew <= 3.0:
            _refuse("skew", "a number from 0 to 3", self.skew)
        if self.label_window_s < 0.0:
            _refuse("label_window_s", "a number of 0 or more", self.label_window_s)


def _refuse(name: str, expected: str, found: object) -> None:
    raise DeployError(f"{name.replace('_', ' ')}: expected {expected}, got {found}")


@dataclass(frozen=True, slots=True)
class Machines:
    """Limits of the machines that parts run on."""

    used_share: float = 0.6
    """Share of a core, a link or a memory that a plan uses; the rest is for peaks and catching up.
    """
    node_memory_gb: float = 256.0
    """Most memory of a learner, keeper or server."""
    server_cores: int = 16
    """Cores of a server: one follows the logs, the others answer."""
    shard_memory_gb: float = 32.0
    """Memory of a shard of the parameter server. A larger shard takes long to fail over."""
    link_gbit_per_second: float = 10.0
    """Network of a machine."""
    partition_mb_per_second: float = 5.0
    """Events and examples of one partition in Kafka."""
    cached_share: float = 0.99
    """Share of lookups that a process finds in memory if it cannot hold all rows."""

    def __post_init__(self) -> None:
        for name in ("used_share", "cached_share"):
            if not 0.01 <= getattr(self, name) <= 1.0:
                _refuse(name, "a share from 0.01 to 1", getattr(self, name))
        for name in ("node_memory_gb", "shard_memory_gb", "link_gbit_per_second"):
            if getattr(self, name) <= 0.0:
                _refuse(name, "a number above 0", getattr(self, name))
        if self.partition_mb_per_second <= 0.0:
            _refuse("partition_mb_per_second", "a number above 0", self.partition_mb_per_second)


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a unit, in any currency."""

    core_hour: float = 0.04
    memory_gb_hour: float = 0.005
    region_gb: float = 0.02
    """A gigabyte from one region to another."""


@dataclass(frozen=True, slots=True)
class Assumptions:
    """All that a plan is made for."""

    workload: Workload
    machines: Machines = field(default_factory=Machines)
    prices: Prices = field(default_factory=Prices)


def assumed(assumptions: Assumptions, changes: Iterable[str]) -> Assumptions:
    """Return the assumptions with other values, each given as NAME=VALUE. Raises BadOption."""
    for change in changes:
        name, _, text = change.partition("=")
        for group in ("workload", "machines", "prices"):
            values = asdict(getattr(assumptions, group))
            if isinstance(values.get(name), int | float):
                part = replace(
                    getattr(assumptions, group), **{name: _number(change, text, values[name])}
                )
                assumptions = replace(assumptions, **{group: part})
                break
        else:
            raise BadOption(f"--assume: expected the name of an assumption, got {change!r}")
    return assumptions


def _number(change: str, text: str, present: float) -> float:
    kind = int if isinstance(present, int) else float
    try:
        value = kind(text)
    except ValueError:
        value = -1
    if not 0 <= value < 1e15:
        wanted = "a whole number" if kind is int else "a number"
        raise BadOption(f"--assume: expected {wanted} of 0 or more, got {change!r}")
    return value
