"""Computes what a relay changes in a plan: traffic, processor time and price.

Without a relay, every server follows the logs of all learners, and each server of another region
receives them over the link between regions. With one relay, only the relay follows the logs. Each
region receives its topic once, by Kafka's own replication, and servers read the topic there.

The relay's own cost rests on two assumptions that no benchmark measures: encoding a row costs as
much as in a learner's push, and a server folds a row of the topic for the price of one in a log.
A relay holds all rows, like a keeper. Kafka's brokers have no price here, as in the plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.deploy.operations.planning.cluster_plan import (
    PROCESS_GB,
    RELAY_INTERVAL_S,
    TABLE_FIXED_BYTES,
)
from headrace.deploy.operations.planning.distinct_values import ValueDistribution

if TYPE_CHECKING:
    from headrace.deploy.operations.planning.cluster_plan import ClusterPlan
    from headrace.deploy.operations.planning.unit_costs import UnitCosts
    from headrace.deploy.operations.planning.workload import Assumptions

RELAY_SHARES = {"all": 0.76, "final": 0.39, "half": 0.23}
"""Bytes of a relay by its values, as shares of the pushed bytes that `tests.bench.relay` measured:
rows of 18 floats, every 200 ms. The plan uses only their ratios to `all`."""


@dataclass(frozen=True, slots=True)
class RelayPlan:
    """A plan in which servers follow a relay, for one setting of `--values`."""

    mb_per_second: float
    """To each server."""
    region_mb_per_second: float
    """From the first region to all others."""
    price_per_hour: float
    """Price of the whole plan, with the relay."""


def relay_plans(
    plan: ClusterPlan, assumptions: Assumptions, costs: UnitCosts
) -> dict[str, RelayPlan]:
    """Return the plans with a relay, by the relay's values."""
    load, prices = assumptions.workload, assumptions.prices
    values = ValueDistribution(load.rows, load.fields, load.skew)
    rows = values.distinct(load.events_per_second * RELAY_INTERVAL_S) / RELAY_INTERVAL_S
    entries = load.buckets / RELAY_INTERVAL_S
    pushed = load.width, plan.pushed_rows_per_second, plan.entries_per_second
    relayed = load.width, rows, entries
    servers = plan.part("servers").count
    saved = servers * (costs.follow.cores(*pushed) - costs.follow.cores(*relayed))
    saved += (servers - 1) * costs.store_read.cores(*pushed)
    own = costs.follow.cores(*pushed) + costs.push.cores(*relayed)
    row_bytes = TABLE_FIXED_BYTES + 4.0 * load.width
    memory_gb = PROCESS_GB + load.rows * row_bytes / 1e9
    price = plan.price_per_hour + prices.memory_gb_hour * memory_gb
    price += prices.core_hour * (own - saved) / assumptions.machines.used_share
    found = {}
    for name, share in RELAY_SHARES.items():
        each = plan.relay_mb_per_second * share / RELAY_SHARES["all"]
        region = each * (load.regions - 1)
        saved_gb = (plan.region_mb_per_second - region) * 3600.0 / 1000.0
        found[name] = RelayPlan(each, region, price - prices.region_gb * saved_gb)
    return found
