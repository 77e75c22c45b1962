"""Plays a day on forty nodes: `python -m tests.cluster.day_and_night`.

At night the servers of a release run few replicas, and experiments fill the nodes. By day the
servers are scaled up. They have the higher priority, so the scheduler stops experiments to make
room. When night comes, the stopped experiments start again on the nodes that the servers left.

The control plane is real; nodes and pods are simulated. Utilisation is the requested part of all
cores. That an experiment goes on from what it saved is shown by tests/learner/experiments.
"""

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from headrace.deploy.local.services.waiting import wait_until
from tests.cluster.build import built
from tests.cluster.control_plane import ControlPlane
from tests.deploy.chart.helm import beside, containers_of, example, pod_of, render

NODES, CORES = 40, 16
POD_CORES = 2
"""Cores of a pod of the server, and of an experiment."""
NIGHT, DAY = 20, 240
"""Replicas of the server."""
EXPERIMENTS = 320
"""Pods of experiments: more than fit beside the online parts at night."""
_NAMESPACE = "day-and-night"
_WAIT_S = 600.0


class Phase(NamedTuple):
    """The pods at one moment, and how long it took to come there."""

    name: str
    online: int
    """Pods of the release that are ready."""
    experiments: int
    """Pods of experiments that are ready."""
    waiting: int
    """Pods of experiments that wait for room."""
    utilisation: float
    """Requested cores of ready pods, as a part of all."""
    online_utilisation: float
    """The same without experiments."""
    seconds: float
    """Until all wanted online pods were ready."""


def play(control_plane: ControlPlane) -> list[Phase]:
    """Play night, day and night; return the phases."""
    control_plane.add_nodes(NODES, CORES, "64Gi")
    control_plane.apply(beside("priorities"))
    control_plane.apply(
        [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _NAMESPACE}}]
    )
    release = _release()
    control_plane.apply(release)
    online = sum(
        each["spec"]["replicas"]
        for each in release
        if each["kind"] in ("Deployment", "StatefulSet")
    )
    control_plane.apply([_experiments()])
    phases = [_phase(control_plane, "night", online)]
    for name, replicas in (("day", DAY), ("night again", NIGHT)):
        control_plane.kubectl(
            *("scale", "deployment/demo-server", f"--replicas={replicas}", f"-n={_NAMESPACE}")
        )
        phases.append(_phase(control_plane, name, online - NIGHT + replicas))
    return phases


def _release() -> list[dict[str, Any]]:
    """Return the workloads of a release in the namespace, and what their pods name."""
    values = example("small")
    values |= {"pods": {"priorityClassName": "headrace-online"}}
    values["server"] |= {"replicas": NIGHT, "resources": {"requests": {"cpu": str(POD_CORES)}}}
    kinds = ("ConfigMap", "Deployment", "ServiceAccount", "StatefulSet")
    found = [each for each in render(values) if each["kind"] in kinds]
    for each in found:
        each["metadata"]["namespace"] = _NAMESPACE
        each["metadata"].get("annotations", {}).pop("helm.sh/hook", None)
    return found


def _experiments() -> dict[str, Any]:
    """Return the Job of `experiments.yaml` with more pods and without its volume."""
    (job,) = beside("experiments")
    job["metadata"]["namespace"] = _NAMESPACE
    job["spec"] |= {"completions": EXPERIMENTS, "parallelism": EXPERIMENTS}
    pod = pod_of(job)
    assert pod is not None
    pod["volumes"] = [each for each in pod["volumes"] if "emptyDir" in each]
    for each in containers_of(job):
        each["resources"]["requests"]["cpu"] = str(POD_CORES)
        each["volumeMounts"] = [mount for mount in each["volumeMounts"] if mount["name"] == "tmp"]
    return job


def _phase(control_plane: ControlPlane, name: str, online: int) -> Phase:
    """Wait until so many online pods are ready and no pod changes; return the phase."""
    begin = time.monotonic()
    counts = Counter[str]()

    def as_wanted() -> bool:
        counts.clear()
        counts.update(_count(control_plane))
        return counts["online ready"] == online and counts["online"] == online

    _wait(as_wanted, lambda: f"{online} ready online pods, got {dict(counts)}")
    seconds = time.monotonic() - begin

    def settled() -> bool:
        as_wanted()
        waiting = counts["trial"] - counts["trial ready"]
        full = all(
            counts[f"millicores of node-{number}"] > 1000 * (CORES - POD_CORES)
            for number in range(NODES)
        )
        created = counts["trial"] == EXPERIMENTS  # by the controller of Jobs, some at a time
        return created and counts["ending"] == 0 and (waiting == 0 or full)

    _wait(settled, lambda: f"no room for the experiments that wait, got {dict(counts)}")
    cores = 1000.0 * NODES * CORES
    both = counts["online millicores"] + counts["trial millicores"]
    return Phase(
        name,
        counts["online ready"],
        counts["trial ready"],
        counts["trial"] - counts["trial ready"],
        both / cores,
        counts["online millicores"] / cores,
        seconds,
    )


def _wait(ready: Callable[[], bool], expected: Callable[[], str]) -> None:
    if not wait_until(ready, _WAIT_S):
        raise TimeoutError(f"expected {expected()} after {_WAIT_S:g} s")


def _count(control_plane: ControlPlane) -> dict[str, int]:
    """Return numbers of pods and the millicores that ready ones request."""
    counts = Counter[str]()
    for pod in control_plane.get("pods", f"-n={_NAMESPACE}"):
        if pod["status"].get("phase") in ("Failed", "Succeeded"):
            continue
        if "deletionTimestamp" in pod["metadata"]:
            counts["ending"] += 1
            continue
        conditions = {each["type"]: each for each in pod["status"].get("conditions", [])}
        if (placed := conditions.get("PodScheduled", {})).get("status") == "False":
            counts[f"unschedulable: {placed.get('message', '')[:80]}"] += 1
        kind = "trial" if pod["spec"]["priorityClassName"] == "headrace-experiments" else "online"
        ready = conditions.get("Ready", {}).get("status") == "True"
        requested = sum(
            _millicores(each["resources"].get("requests", {}).get("cpu", "0"))
            for each in pod["spec"]["containers"]
        )
        counts.update({kind: 1, f"{kind} ready": ready, f"{kind} millicores": ready * requested})
        if ready:
            counts[f"millicores of {pod['spec']['nodeName']}"] += requested
    return dict(counts)


def _millicores(written: str) -> int:
    return int(written[:-1]) if written.endswith("m") else round(1000 * float(written))


def as_table(phases: list[Phase]) -> Table:
    """Return the phases as a table."""
    columns = ("online", "experiments", "waiting", "cores used", "online alone", "seconds")
    table = Table("", *columns)
    for each in phases:
        table.add_row(
            *(each.name, f"{each.online}", f"{each.experiments}", f"{each.waiting}"),
            *(f"{each.utilisation:.0%}", f"{each.online_utilisation:.0%}", f"{each.seconds:.1f}"),
        )
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def main() -> int:
    """Play and print; return the exit status."""
    programs = built()
    if programs is None:
        print("expected a built Kubernetes; run: python -m tests.cluster.build", file=sys.stderr)
        return 2
    with (
        tempfile.TemporaryDirectory(prefix="headrace-cluster-") as directory,
        ControlPlane(programs, Path(directory)) as control_plane,
    ):
        Console().print(as_table(play(control_plane)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
