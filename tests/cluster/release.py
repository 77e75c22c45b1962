"""Installs the chart on a node with Helm's own program, and acts on the pods of the release."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from headrace.deploy.local.services.waiting import wait_until
from tests.cluster.control_plane import ControlPlane, Refused
from tests.deploy.chart.helm import CHART, NAMESPACE, RELEASE

_PATIENCE = "--timeout=600s"
_REPLACED_S = 120.0


class Release:
    """A release in a namespace of its own."""

    def __init__(self, control_plane: ControlPlane, helm: Path, directory: Path) -> None:
        self._control_plane, self._helm_program = control_plane, helm
        self._directory = directory
        """For the files of Helm."""

    def install(self, values: dict[str, Any]) -> str:
        """Run `helm install --wait` in a new namespace; return what it prints. Raises Refused."""
        return self._helm("install", "--create-namespace", values=values)

    def upgrade(self, values: dict[str, Any], chart: Path) -> str:
        """Run `helm upgrade --wait`; return what it prints. Raises Refused."""
        return self._helm("upgrade", values=values, chart=chart)

    def uninstall(self) -> None:
        """Run `helm uninstall --wait`. Raises Refused."""
        self._run_helm("uninstall", RELEASE, "--wait", _PATIENCE)

    def left(self) -> list[str]:
        """Return the objects in the namespace that belong to the release."""
        kinds = self._control_plane.kubectl(
            *("api-resources", "--verbs=list", "--namespaced", "--output=name")
        ).split()
        chosen = [each for each in kinds if not each.startswith("events")]
        names = self._kubectl(
            *("get", ",".join(chosen), "--output=name"),
            f"--selector=app.kubernetes.io/instance={RELEASE}",
        )
        return names.split()

    def wait_rolled_out(self) -> None:
        """Wait until every pod is of the newest version, and ready."""
        for name in self._names("deployments"):
            self._kubectl("rollout", "status", f"deployment/{name}", _PATIENCE)

    def kill(self, component: str) -> None:
        """Delete one pod with the shortest grace period, and wait for its successor.

        A kubelet sends SIGTERM and waits two seconds. Tests of faults send SIGKILL at once.
        """
        before = self._names("pods", component)
        self._kubectl("delete", f"pod/{before[0]}", "--grace-period=0", "--force")

        def replaced() -> bool:
            self.wait_rolled_out()  # may end before the Deployment has noticed
            return len(set(self._names("pods", component)) - {before[0]}) >= len(before)

        assert wait_until(replaced, _REPLACED_S), f"expected a successor of {before[0]}"
        self.wait_rolled_out()

    def drain(self, node: str, component: str, seconds: int) -> None:
        """Cordon the node and evict the pods of a component; raises Refused if one may not go."""
        self._kubectl(
            *("drain", node, f"--pod-selector={_label(component)}"),
            *("--delete-emptydir-data", f"--timeout={seconds}s"),
        )

    def uncordon(self, node: str) -> None:
        """Let the scheduler use the node again, and wait for the pods that waited for it."""
        self._kubectl("uncordon", node)
        self.wait_rolled_out()

    def pods(self, component: str) -> list[dict[str, Any]]:
        """Return the pods of a component."""
        return self._control_plane.get("pods", f"-n={NAMESPACE}", f"-l={_label(component)}")

    def states(self) -> str:
        """Return a line for each pod: its phase, restarts, and why its container waits or ended."""
        lines = []
        for pod in self._control_plane.get("pods", f"-n={NAMESPACE}"):
            status = pod["status"]
            for each in status.get("containerStatuses", []):
                ready = "ready" if each["ready"] else "not ready"
                why = [
                    f"{kind} {state.get('reason', '')} {state.get('exitCode', '')}".strip()
                    for name in ("state", "lastState")
                    for kind, state in each.get(name, {}).items()
                ]
                name, count = pod["metadata"]["name"], each["restartCount"]
                lines.append(f"{name}: {ready}, {count} restarts, {', '.join(why)}")
        return "\n".join(lines)

    def ready_addresses(self, component: str) -> list[str]:
        """Return `host:port` of the pods that the Service of a component balances among."""
        name = f"kubernetes.io/service-name={RELEASE}-{component}"
        return [
            f"{address}:{port['port']}"
            for each in self._control_plane.get("endpointslices", f"-n={NAMESPACE}", f"-l={name}")
            for port in each["ports"] or []
            for endpoint in each["endpoints"] or []
            if endpoint["conditions"].get("ready")
            for address in endpoint["addresses"]
        ]

    def _helm(
        self, command: str, *options: str, values: dict[str, Any], chart: Path = CHART
    ) -> str:
        file = self._directory / "values.yaml"
        file.write_text(yaml.safe_dump(values))
        words = (RELEASE, str(chart), f"--values={file}", "--wait", _PATIENCE, *options)
        return self._run_helm(command, *words)

    def _run_helm(self, *words: str) -> str:
        command = [str(self._helm_program), *words, f"--namespace={NAMESPACE}"]
        folders = {
            f"HELM_{each}_HOME": str(self._directory / "helm")
            for each in ("CACHE", "CONFIG", "DATA")
        }
        done = subprocess.run(
            command,
            env={**os.environ, **folders, "KUBECONFIG": str(self._control_plane.kubeconfig)},
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise Refused(f"helm {words[0]}: {done.stderr.strip()}\n{self.states()}")
        return done.stdout

    def _names(self, kind: str, component: str = "") -> list[str]:
        chosen = [f"-l={_label(component)}"] if component else []
        found = self._control_plane.get(kind, f"-n={NAMESPACE}", *chosen)
        return [each["metadata"]["name"] for each in found]

    def _kubectl(self, *arguments: str) -> str:
        return self._control_plane.kubectl(*arguments, f"-n={NAMESPACE}")


def chart_of_version(version: str, directory: Path) -> Path:
    """Copy the chart to a folder under another version, which changes a label of every pod."""
    copy = shutil.copytree(CHART, directory / "chart")
    described = copy / "Chart.yaml"
    lines = described.read_text().splitlines()
    lines = [f"version: {version}" if each.startswith("version:") else each for each in lines]
    described.write_text("\n".join(lines) + "\n")
    return copy


def _label(component: str) -> str:
    return f"app.kubernetes.io/component={component}"
