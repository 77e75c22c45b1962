"""A plan as text, and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from msgspec import to_builtins

from headrace.deploy.operations.planning.relay_plan import relay_plans

if TYPE_CHECKING:
    from headrace.deploy.operations.planning.cluster_plan import ClusterPlan, PartPlan
    from headrace.deploy.operations.planning.relay_plan import RelayPlan
    from headrace.deploy.operations.planning.unit_costs import UnitCosts
    from headrace.deploy.operations.planning.workload import Assumptions

_COLUMNS = f"{'part':<10} {'processes':>9} {'busy cores':>11} {'memory GB':>11}  set by"

_SERVERS_WITHOUT_RELAY = 8
"""A report of more servers, or of several regions, names the relay."""

_DOES_NOT_FIT = (
    "This load does not fit: more processes do not relieve the bottleneck. The numbers above are "
    "those of the least overloaded plan."
)


def plan_json(
    plan: ClusterPlan, assumptions: Assumptions, costs: UnitCosts, most_events: float
) -> dict[str, object]:
    """Return the plan with all that it rests on."""
    return {
        "feasible": plan.feasible,
        "bottleneck": asdict(plan.bottleneck),
        "greatest_events_per_second": round(most_events),
        "plan": asdict(plan),
        "relay_by_values": {
            values: asdict(each) for values, each in relay_plans(plan, assumptions, costs).items()
        },
        "assumptions": asdict(assumptions),
        "constants": to_builtins(costs),
    }


def plan_text(
    plan: ClusterPlan, assumptions: Assumptions, costs: UnitCosts, most_events: float
) -> str:
    """Return the plan for a reader."""
    load, prices = assumptions.workload, assumptions.prices
    model = f"{load.rows:,.0f} rows of {load.width} floats, {load.fields} fields"
    log = f"{plan.pushed_rows_per_second:,.0f} rows/s in {plan.entries_per_second:,.0f} entries/s"
    asked = f"{load.requests_per_second:,.0f} requests/s of {load.candidates:g} candidates"
    units = f"{prices.core_hour:g} a core, {prices.memory_gb_hour:g} a GB of memory, "
    units += f"{prices.region_gb:g} a GB between regions"
    within, across = plan.network_mb_per_second, plan.region_mb_per_second
    lines = [
        f"load             {load.events_per_second:,.0f} events/s, {asked}",
        f"model            {load.architecture}, {model}",
        f"regions          {load.regions}",
        f"constants        {costs.source}",
        "",
        _COLUMNS,
        *map(_part_line, plan.parts),
        "",
        f"partitions       {plan.partitions:,} of each topic",
        f"pushes           every {plan.push_interval_ms:,.0f} ms",
        f"logs             {log}, {plan.log_mb_per_second:,.1f} MB/s to each learner and server",
        f"network          {within:,.0f} MB/s in the first region, {across:,.0f} MB/s to others",
        f"price            {plan.price_per_hour:,.2f} an hour, at {units}",
    ]
    servers = plan.part("servers").count
    if (load.regions > 1 or servers > _SERVERS_WITHOUT_RELAY) and plan.cached_rows is None:
        lines += _relay_lines(relay_plans(plan, assumptions, costs))
    if plan.cached_rows is not None:
        share = f"{assumptions.machines.cached_share:.0%} of lookups (--most-rows)"
        cached = f"{plan.cached_rows:,.0f} in each learner and server"
        lines.append(f"cached rows      {cached}, for {share}")
    return "\n".join([*lines, "", *_verdict(plan, most_events)])


def _relay_lines(plans: dict[str, RelayPlan]) -> list[str]:
    each = f"{plans['all'].mb_per_second:,.1f} MB/s to each server in place of the logs (--relay)"
    lines = [f"relay            {each}; answers are 0.1 s older on average"]
    for values, found in plans.items():
        rate = f"{found.mb_per_second:,.1f} MB/s, {found.region_mb_per_second:,.1f} MB/s to others"
        basis = "" if values == "all" else ", by the shares of rows of 18 floats"
        price = f"price {found.price_per_hour:,.2f} an hour"
        lines.append(f"  --values {values:<7} {rate}, {price}{basis}")
    return lines


def _part_line(part: PartPlan) -> str:
    figures = f"{part.count:>9,} {part.cores:>11,.1f} {part.memory_gb:>11,.1f}"
    return f"{part.name:<10} {figures}  {part.reason}"


def _verdict(plan: ClusterPlan, most_events: float) -> list[str]:
    lines = [
        f"bottleneck       {plan.bottleneck.name}: {plan.bottleneck.load:.0%} of its limit",
        f"rests on         {plan.bottleneck.assumption}",
        f"greatest load    {most_events:,.0f} events/s with this model and these machines",
    ]
    if not plan.feasible:
        lines += ["", _DOES_NOT_FIT]
    return lines
