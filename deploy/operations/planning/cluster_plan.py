"""Plans a cluster: processes, memory, network and price for a load, and the bottleneck.

Pure arithmetic over a `Workload` and the `UnitCosts` of a machine. E is events a second, L the
number of learners, p the seconds between two pushes, and D(n) the distinct rows in n examples
(`distinct_values`):

    examples                   E: under `immediate`, each impression and each click is one
    pushed rows                R(L) = L * D(E / L * p) / p
    entries of logs            N(L) = L * buckets / p
    joiners together           E * join
    a learner's core           E / L * learn + push(R / L, N / L) + follow(R, N) + refresh(R, N)
    keepers together           follow(R, N) + K * keep, K = D(E * i) / i rows if logs last i seconds
    a server's following core  follow(R, N)
    servers' other cores       requests * (request + candidates * score)
    parameter server           push(R, N) + K * fold + read(R, N) * (learners + servers + 1)

Joiners, keepers, shards and the answering cores of servers add up: more processes, more load. Two
terms do not. Every learner and every server follows all logs, and a second learner does not shorten
them; it even lengthens them, because both push the hot rows, and an entry for each bucket. The
number of learners is the least one whose core is not overloaded. If no number suffices, the plan
says so. `longer_pushes` looks for a longer time between pushes first: learners then follow less,
and answers are that much older. `greatest_load` is the end of this design.

Where a process cannot hold all rows, the plan gives it a cache of the most frequent ones. It still
reads all logs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.deploy.operations.planning.distinct_values import ValueDistribution

if TYPE_CHECKING:
    from headrace.deploy.operations.planning.unit_costs import LogCost, UnitCosts
    from headrace.deploy.operations.planning.workload import Assumptions

_US, _GB, _MB = 1e-6, 1e9, 1e6
_MOST_LEARNERS = 4096
PROCESS_GB = 0.3
"""Memory of a process without rows: Python, libraries, compiled kernels."""
_PENDING_FIXED_BYTES, _PENDING_FIELD_BYTES = 132.0, 8.0
"""Memory of an impression in the label window: 228 bytes with 12 fields (`docs/benchmarks.md`)."""
TABLE_FIXED_BYTES, _VIEW_FIXED_BYTES = 44.0, 60.0
"""Memory of a row without its floats, in a replica and in a learner's view: id, counters, slots of
the index. A view holds those of pending deltas as well."""
_LOGGED_ROW_BYTES, _ENTRY_BYTES = 24.0, 250.0
"""Bytes of a row in a log entry without its floats (id and counters), and of an entry without its
rows: header, sources, names of the stream's fields."""
RELAY_INTERVAL_S = 0.2
"""Time between two writes of a relay, as `headrace serving relay` has it by default."""
PUSH_INTERVALS_MS = (50.0, 100.0, 200.0, 400.0, 800.0, 1600.0)
"""Times between pushes that `longer_pushes` tries, in milliseconds."""
_EXAMPLE_FIXED_BYTES = 70.0
"""Bytes of an example in Kafka without its ids: names, times, label."""


@dataclass(frozen=True, slots=True)
class PartPlan:
    """The processes of one part, in all regions together."""

    name: str
    count: int
    cores: float
    """Busy cores of all of them."""
    memory_gb: float
    """Memory of all of them."""
    reason: str
    """The limit that sets the number."""


@dataclass(frozen=True, slots=True)
class Pressure:
    """Load of something that more processes do not relieve, relative to its limit."""

    name: str
    load: float
    """1 is the planned limit."""
    assumption: str
    """The constants that the figure rests on."""


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """A plan, feasible or not."""

    partitions: int
    parts: tuple[PartPlan, ...]
    push_interval_ms: float
    pushed_rows_per_second: float
    entries_per_second: float
    log_mb_per_second: float
    """Of one follower."""
    network_mb_per_second: float
    """Inside the first region."""
    region_mb_per_second: float
    """From the first region to all others."""
    relay_mb_per_second: float
    """Read by one server that follows a relay in place of the logs, before compression."""
    pressures: tuple[Pressure, ...]
    """The greatest first."""
    price_per_hour: float
    cached_rows: float | None
    """Rows of a learner and a server that cannot hold all; None if they can."""

    @property
    def feasible(self) -> bool:
        """Whether every limit holds."""
        return self.pressures[0].load <= 1.0

    @property
    def bottleneck(self) -> Pressure:
        """The limit that is reached first."""
        return self.pressures[0]

    def part(self, name: str) -> PartPlan:
        """Return a part by its name."""
        return next(part for part in self.parts if part.name == name)


def plan_cluster(assumptions: Assumptions, costs: UnitCosts) -> ClusterPlan:
    """Return the plan for a load. Raises DeployError for an architecture without constants."""
    return _Planner(assumptions, costs).plan()


def greatest_load(assumptions: Assumptions, costs: UnitCosts) -> float:
    """Return the most events per second that a feasible plan exists for, all else equal."""

    def feasible(events: float) -> bool:
        load = replace(assumptions.workload, events_per_second=events)
        return plan_cluster(replace(assumptions, workload=load), costs).feasible

    low, high = 1.0, 1e9
    if not feasible(low):
        return 0.0
    for _ in range(40):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if feasible(middle) else (low, middle)
    return low


def longer_pushes(assumptions: Assumptions, costs: UnitCosts) -> Assumptions:
    """Return the assumptions with the shortest time between pushes that is feasible.

    If none is feasible, with the one whose bottleneck is the least overloaded.
    """
    tried = []
    for interval_ms in PUSH_INTERVALS_MS:
        load = replace(assumptions.workload, push_interval_ms=interval_ms)
        changed = replace(assumptions, workload=load)
        plan = plan_cluster(changed, costs)
        if plan.feasible:
            return changed
        tried.append((plan.bottleneck.load, interval_ms, changed))
    return min(tried, key=lambda each: each[:2])[2]


class _Planner:
    """The terms of the docstring, computed once."""

    def __init__(self, assumptions: Assumptions, costs: UnitCosts) -> None:
        self._load, self._machines = assumptions.workload, assumptions.machines
        self._prices, self._costs = assumptions.prices, costs
        load, width = self._load, self._load.width
        self._values = ValueDistribution(load.rows, load.fields, load.skew)
        self._learn_us = costs.of(costs.learn, load.architecture).at(load.fields)
        self._score_us = costs.of(costs.score, load.architecture).at(load.fields)
        self._logged_row_bytes = _LOGGED_ROW_BYTES + 4.0 * width
        self._table_bytes = TABLE_FIXED_BYTES + 4.0 * width
        self._view_bytes = _VIEW_FIXED_BYTES + 8.0 * width
        both = (self._table_bytes + self._view_bytes) * load.rows / _GB
        self._cached: float | None = None
        if both > self._machines.node_memory_gb * self._machines.used_share:
            self._cached = self._values.rows_for(self._machines.cached_share)

    def plan(self) -> ClusterPlan:
        """Return the plan."""
        load, share = self._load, self._machines.used_share
        learners = self._learners()
        pushed = self._pushed(learners)
        entries, log_mb = self._entries(learners), self._log_mb(learners)
        example_mb = load.events_per_second * self._example_bytes / _MB
        event_mb = load.events_per_second * load.event_bytes / _MB
        per_partition = self._machines.partition_mb_per_second * share
        joiners = self._joiners()
        busiest = max(learners, joiners.count, (event_mb + example_mb) / per_partition)
        partitions = 1 << math.ceil(math.log2(max(1.0, busiest)))
        servers = self._servers(learners)
        keepers, shards = self._keepers(learners), self._shards(learners, servers.count)
        parts = (joiners, self._learner_part(learners), shards, keepers, servers)
        elsewhere = servers.count * (load.regions - 1) / load.regions
        region_mb = log_mb * elsewhere
        followers = learners + servers.count - elsewhere + 1
        kafka_mb = (event_mb + example_mb) * (load.kafka_copies + 1)
        price = self._prices.core_hour * sum(part.cores for part in parts) / share
        price += self._prices.memory_gb_hour * sum(part.memory_gb for part in parts)
        price += self._prices.region_gb * region_mb * 3600.0 / 1000.0
        pressures = self._pressures(learners)
        return ClusterPlan(
            *(partitions, parts, load.push_interval_ms, pushed, entries, log_mb),
            *(kafka_mb + log_mb * followers, region_mb, self._relay_mb()),
            tuple(sorted(pressures, key=lambda each: -each.load)),
            *(price, self._cached),
        )

    @property
    def _held_rows(self) -> float:
        return self._load.rows if self._cached is None else self._cached

    @property
    def _example_bytes(self) -> float:
        return _EXAMPLE_FIXED_BYTES + 8.0 * self._load.fields

    def _pushed(self, learners: int) -> float:
        """Return the rows that all learners push in a second."""
        seconds = self._load.push_interval_ms / 1000.0
        examples = self._load.events_per_second / learners * seconds
        return learners * self._values.distinct(examples) / seconds

    def _entries(self, learners: int) -> float:
        """Return the entries that all learners push in a second."""
        return learners * self._load.buckets * 1000.0 / self._load.push_interval_ms

    def _log_mb(self, learners: int) -> float:
        rows, entries = self._pushed(learners), self._entries(learners)
        return (rows * self._logged_row_bytes + entries * _ENTRY_BYTES) / _MB

    def _relay_mb(self) -> float:
        """Return what a relay writes in a second: each row once that changed in an interval."""
        seconds = RELAY_INTERVAL_S
        rows = self._values.distinct(self._load.events_per_second * seconds) / seconds
        return (rows * self._logged_row_bytes + self._load.buckets / seconds * _ENTRY_BYTES) / _MB

    def _folded(self, learners: int) -> float:
        """Return the rows that keepers write in a second."""
        kept_mb = self._load.keep_bucket_bytes * self._load.buckets / _MB
        seconds = min(self._load.keep_interval_ms / 1000.0, kept_mb / self._log_mb(learners))
        return self._values.distinct(self._load.events_per_second * seconds) / seconds

    def _cores_of(self, cost: LogCost, learners: int, share: float = 1.0) -> float:
        """Return busy cores for a share of what all learners push."""
        rows, entries = self._pushed(learners), self._entries(learners)
        return cost.cores(self._load.width, rows * share, entries * share)

    def _following_cores(self, learners: int) -> float:
        costs = self._costs
        return self._cores_of(costs.follow, learners) + self._cores_of(costs.refresh, learners)

    def _learner_cores(self, learners: int) -> float:
        """Return the busy share of one learner's core."""
        each = self._learn_us + self._costs.kafka_example_us
        learning = self._load.events_per_second / learners * each * _US
        pushing = self._cores_of(self._costs.push, learners, 1.0 / learners)
        return self._idle("learners") + learning + pushing + self._following_cores(learners)

    def _idle(self, part: str) -> float:
        return self._costs.idle_cores.get(part, 0.0)

    def _learners(self) -> int:
        """Return the least sufficient number of learners, or the one with the least load."""
        share = self._machines.used_share
        best, least, before, count = 1, math.inf, 0, 1
        while count <= _MOST_LEARNERS:
            busy = self._learner_cores(count)
            if busy <= share:
                return self._least(before, count)
            if busy < least:
                best, least = count, busy
            before, count = count, max(count + 1, count * 11 // 10)
        return best

    def _least(self, too_few: int, enough: int) -> int:
        while enough - too_few > 1:
            middle = (too_few + enough) // 2
            if self._learner_cores(middle) <= self._machines.used_share:
                enough = middle
            else:
                too_few = middle
        return enough

    def _joiners(self) -> PartPlan:
        load = self._load
        costs = self._costs
        each = costs.join.at(load.fields) + costs.kafka_event_us + costs.kafka_example_us
        cores = load.events_per_second * each * _US
        pending = _PENDING_FIXED_BYTES + _PENDING_FIELD_BYTES * load.fields
        window_gb = load.events_per_second * load.label_window_s * pending / _GB
        by_cores = _processes(cores, self._machines.used_share)
        by_memory = _processes(window_gb, self._machines.node_memory_gb * self._machines.used_share)
        count = max(by_cores, by_memory)
        reason = "processor" if by_cores >= by_memory else "memory of the label window"
        cores += count * self._idle("joiners")
        return PartPlan("joiners", count, cores, window_gb + count * PROCESS_GB, reason)

    def _learner_part(self, learners: int) -> PartPlan:
        each_gb = PROCESS_GB + self._held_rows * (self._table_bytes + self._view_bytes) / _GB
        cores = learners * self._learner_cores(learners)
        return PartPlan("learners", learners, cores, learners * each_gb, "processor")

    def _keepers(self, learners: int) -> PartPlan:
        load, costs = self._load, self._costs
        cores = self._cores_of(costs.follow, learners)
        cores += self._folded(learners) * costs.keep.at(load.width) * _US
        rows_gb = load.rows * self._table_bytes / _GB
        by_cores = _processes(cores, self._machines.used_share)
        by_memory = _processes(rows_gb, self._machines.node_memory_gb * self._machines.used_share)
        count = max(2, by_cores, by_memory)  # one of two takes over
        reason = "two for availability" if count == 2 else "processor"
        reason = "memory" if by_memory > max(2, by_cores) else reason
        cores += count * self._idle("keepers")
        return PartPlan("keepers", count, cores, rows_gb + count * PROCESS_GB, reason)

    def _shards(self, learners: int, servers: int) -> PartPlan:
        load, costs, machines = self._load, self._costs, self._machines
        followers = learners + servers + 1  # all keepers together read the logs once
        read_mb = self._log_mb(learners) * followers
        cores = self._cores_of(costs.store_push, learners)
        cores += self._cores_of(costs.store_read, learners, followers)
        cores += self._folded(learners) * costs.store_fold.at(load.width) * _US
        rows_gb = load.rows * costs.stored_bytes.at(load.width) / _GB
        link_mb = machines.link_gbit_per_second * 1000.0 / 8.0
        limits = {
            "memory": _processes(rows_gb, machines.shard_memory_gb * machines.used_share),
            "processor": _processes(cores, machines.used_share),
            "network of the logs": _processes(read_mb, link_mb * machines.used_share),
        }
        reason = max(limits, key=lambda name: limits[name])
        count = limits[reason] * load.store_copies
        cores += count * self._idle("shards")
        return PartPlan("shards", count, cores, rows_gb * load.store_copies, reason)

    def _servers(self, learners: int) -> PartPlan:
        load, machines = self._load, self._machines
        micros = self._costs.request_us + load.candidates * self._score_us
        answering = load.requests_per_second * micros * _US / load.regions
        workers = max(1, machines.server_cores - 1) * machines.used_share
        by_cores = _processes(answering, workers)
        each_region = max(2, by_cores)  # one of two goes on alone
        count = each_region * load.regions
        rows = load.rows if self._cached is None else self._cached
        each_gb = PROCESS_GB * machines.server_cores + rows * self._table_bytes / _GB
        following = self._cores_of(self._costs.follow, learners) + self._idle("servers")
        cores = answering * load.regions + count * following
        reason = "processor" if by_cores >= 2 else "two in a region for availability"
        return PartPlan("servers", count, cores, count * each_gb, reason)

    def _pressures(self, learners: int) -> list[Pressure]:
        share, costs, width = self._machines.used_share, self._costs, self._load.width
        link_mb = self._machines.link_gbit_per_second * 1000.0 / 8.0 * share
        rate = f"{self._pushed(learners):,.0f} rows/s in {self._entries(learners):,.0f} entries/s"
        row_us, entry_us = costs.follow.row.at(width), costs.follow.entry_us
        both_us = row_us + costs.refresh.row.at(width)
        busy, following = self._learner_cores(learners), self._following_cores(learners)
        row_bytes = self._table_bytes + self._view_bytes
        rows_gb = self._held_rows * row_bytes / _GB
        return [
            Pressure(
                "every learner follows the logs of all learners",
                (busy if busy > share else following) / share,
                f"{both_us:.2f} us a row and {entry_us + costs.refresh.entry_us:.0f} us an entry "
                f"to follow in a learner, {rate}",
            ),
            Pressure(
                "every server follows all logs",
                self._cores_of(costs.follow, learners) / share,
                f"{row_us:.2f} us a row and {entry_us:.0f} us an entry to follow, {rate}",
            ),
            Pressure(
                "the network of a follower",
                self._log_mb(learners) / link_mb,
                f"{self._logged_row_bytes:.0f} bytes a row in a log, {rate}",
            ),
            Pressure(
                "the memory of a learner",
                rows_gb / (self._machines.node_memory_gb * share),
                f"{row_bytes:.0f} bytes a row, {self._held_rows:,.0f} rows in memory",
            ),
        ]


def _processes(needed: float, each: float) -> int:
    """Return how many processes of a capacity are needed, at least one."""
    return max(1, math.ceil(needed / each - 1e-9))
