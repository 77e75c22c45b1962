"""Renders and lints the chart with Helm as a library, and checks objects against Kubernetes.

The only file that calls helm-python-sdk, which is young. It could be replaced by `helm template`.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

HERE = Path(__file__).parent
CHART = Path(__file__).parents[3] / "deploy/chart"
RELEASE, NAMESPACE = "demo", "ctr"
EXAMPLES = ("small", "large")
Object = dict[str, Any]
KUBERNETES = ("1.29", "1.36")
"""The oldest version that the chart takes, and a new one."""

_WARNING = 2  # severity in Helm's linter; 1 is a recommendation
CUSTOM = (
    *("PodMonitor", "PrometheusRule", "ScaledObject"),
    *("KafkaTopic", "KafkaUser", "ValkeyCluster"),
)
"""Kinds whose definitions are in `crds`."""


def example(name: str) -> dict[str, Any]:
    """Return values from `deploy/chart/examples`."""
    values: dict[str, Any] = yaml.safe_load((CHART / f"examples/{name}.yaml").read_text())
    return values


def render(values: dict[str, Any], chart: Path = CHART) -> list[dict[str, Any]]:
    """Return all objects of a release with these values, by the name of their template.

    `chart`: a folder. Raises ValueError with Helm's message.
    """
    helm = pytest.importorskip("helm_python", reason="helm-python-sdk has no wheel for this system")
    try:
        with helm.Chart.load(chart) as loaded:
            files = loaded.render(values=values, name=RELEASE, namespace=NAMESPACE)
    except helm.HelmError as error:
        raise ValueError(str(error)) from error
    return [
        each
        for name in sorted(files)
        if not name.endswith("NOTES.txt")
        for each in yaml.safe_load_all(files[name])
        if each
    ]


@cache
def release(name: str) -> list[Object]:
    """Return the objects of an example, which no test may change."""
    return render(example(name))


def faults_of_chart(values: dict[str, Any]) -> list[str]:
    """Return the warnings and errors of Helm's linter."""
    helm = pytest.importorskip("helm_python", reason="helm-python-sdk has no wheel for this system")
    found = helm.lint(CHART, values)
    errors: list[str] = found["errors"]
    return errors + [
        f"{each['path']}: {each['error']}"
        for each in found["messages"]
        if each["severity"] >= _WARNING
    ]


def validate(found: dict[str, Any], version: str) -> None:
    """Check an object strictly: unknown keys are errors. Raises a ValidationError.

    Objects of other operators are checked against their definitions in `crds`.
    """
    if found["kind"] in CUSTOM:
        jsonschema.validate(found, schema_of(found["kind"]))
    else:
        import kubernetes_validate

        kubernetes_validate.validate(found, version, strict=True)


@cache
def schema_of(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of a custom kind."""
    read: dict[str, Any] = json.loads((HERE / f"crds/{kind.lower()}.json").read_text())
    return read


def beside(name: str) -> list[dict[str, Any]]:
    """Return the objects of a file in `deploy/chart/examples/objects`."""
    text = (CHART / f"examples/objects/{name}.yaml").read_text()
    return [each for each in yaml.safe_load_all(text) if each]


def containers_of(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the containers of a workload, those that run first included."""
    pod = pod_of(found)
    return [] if pod is None else pod.get("initContainers", []) + pod["containers"]


def pod_of(found: dict[str, Any]) -> dict[str, Any] | None:
    """Return the `spec` of a workload's pods; None for other objects."""
    spec = found.get("spec", {})
    if found["kind"] == "CronJob":
        spec = spec["jobTemplate"]["spec"]
    pod: dict[str, Any] | None = spec.get("template", {}).get("spec")
    return pod
