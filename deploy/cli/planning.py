"""`headrace plan` and `headrace calibrate`: the cluster for a load, and the constants of a plan."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option, echo

if TYPE_CHECKING:
    from headrace.deploy.operations.planning import UnitCosts

ARCHITECTURES = (
    "logistic_regression",
    "factorization_machine",
    "field_weighted_fm",
    "wide_and_deep",
    "deepfm",
    "dcn_v2",
)


Events = Annotated[float, Option("--events-per-second", help="Impressions and clicks per second.")]
Rows = Annotated[float, Option("--rows", help="Rows of the model.")]
Fields = Annotated[int, Option("--fields", help="Fields of an example.")]
Architecture = Annotated[
    str, Option("--model", help="Architecture, such as logistic_regression or deepfm.")
]
Dimensions = Annotated[int, Option("--dimensions", help="Floats of an embedding.")]
Regions = Annotated[int, Option("--regions", help="Regions with servers.")]
Requests = Annotated[
    float, Option("--requests-per-second", help="Requests. Default: a tenth of the events.")
]
Candidates = Annotated[float, Option("--candidates", help="Candidates of a request.")]
PushInterval = Annotated[
    float,
    Option(
        "--push-interval-ms",
        help="Milliseconds between a learner's pushes. 0: the shortest time from 50 to 1,600 "
        "that is feasible.",
    ),
]
Assume = Annotated[
    list[str] | None,
    Option(
        "--assume",
        metavar="NAME=VALUE",
        help="Another value of an assumption, such as core_hour=0.05 for the price of a core. "
        "Repeatable; --json prints all names.",
        show_default=False,
    ),
]
Constants = Annotated[
    Path | None,
    Option(
        "--constants",
        metavar="FILE",
        help="Constants of `headrace calibrate`. Default: those of the project's machine.",
    ),
]


def plan(
    events_per_second: Events,
    rows: Rows,
    fields: Fields,
    model: Architecture = "logistic_regression",
    dimensions: Dimensions = 8,
    regions: Regions = 1,
    requests_per_second: Requests = 0.0,
    candidates: Candidates = 100.0,
    push_interval_ms: PushInterval = 0.0,
    assume: Assume = None,
    constants: Constants = None,
    json: Annotated[bool, Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Plan a cluster: processes, memory, network and price for a load, and the bottleneck.

    Starts no process. The exit status is 2 if no number of processes is enough for the load.
    """
    from dataclasses import replace

    import orjson
    from typer import Exit

    from headrace.deploy.operations.cost_measurement import trial_spec
    from headrace.deploy.operations.planning import (
        PUSH_INTERVALS_MS,
        Assumptions,
        Workload,
        assumed,
        greatest_load,
        longer_pushes,
        plan_cluster,
        plan_json,
        plan_text,
    )
    from headrace.deploy.termination import REFUSED

    load = Workload(
        events_per_second=events_per_second,
        rows=rows,
        fields=fields,
        architecture=model,
        width=trial_spec(model, 2, dimensions).width,
        regions=regions,
        requests_per_second=requests_per_second or events_per_second / 10.0,
        candidates=candidates,
        push_interval_ms=push_interval_ms or PUSH_INTERVALS_MS[0],
    )
    assumptions, costs = assumed(Assumptions(load), assume or ()), _constants(constants)
    longest = assumptions
    if not push_interval_ms:
        rarely = replace(assumptions.workload, push_interval_ms=max(PUSH_INTERVALS_MS))
        longest = replace(assumptions, workload=rarely)
        assumptions = longer_pushes(assumptions, costs)
    found = plan_cluster(assumptions, costs)
    most = greatest_load(longest, costs)
    if json:
        echo(orjson.dumps(plan_json(found, assumptions, costs, most), option=orjson.OPT_INDENT_2))
    else:
        echo(plan_text(found, assumptions, costs, most))
    if not found.feasible:
        raise Exit(REFUSED)


def _constants(path: Path | None) -> "UnitCosts":
    from headrace.deploy.operations.planning import RECORDED, read_unit_costs

    return RECORDED if path is None else read_unit_costs(path)


def calibrate(
    output: Annotated[
        Path,
        Option("--output", metavar="FILE", help="File for the constants (JSON)."),
    ] = Path("constants.json"),
    architecture: Annotated[
        list[str] | None,
        Option(
            "--architecture",
            help="Architecture to measure. Repeatable. Default: all, or those without torch.",
            show_default=False,
        ),
    ] = None,
    seconds: Annotated[
        float, Option("--seconds", min=0.01, help="Seconds of each measurement.")
    ] = 1.0,
) -> None:
    """Measure the constants of `headrace plan` on this machine, in two to three minutes.

    Runs the joiner, learners and servers in memory, and two Valkey shards for pushes and logs.
    """
    from importlib.util import find_spec

    import msgspec

    from headrace.deploy.operations.cost_measurement import calibrate as measure

    wanted = architecture or ARCHITECTURES[: None if find_spec("torch") else 3]
    found = measure(wanted, seconds, lambda line: echo(line, err=True))
    output.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
    echo(f"wrote {output}; use it with `headrace plan --constants {output}`")
