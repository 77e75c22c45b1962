"""The API server accepts every object of the chart, and of the files beside it, strictly."""

import copy
from typing import Any

import pytest

from tests.cluster.control_plane import ControlPlane, Refused
from tests.cluster.definitions import definitions
from tests.deploy.chart.helm import EXAMPLES, NAMESPACE, beside, example, render

BESIDE = ("priorities", "tenant", "kafka", "valkey", "experiments")


@pytest.fixture(scope="module")
def prepared(control_plane: ControlPlane) -> ControlPlane:
    """A control plane with the custom kinds and the namespaces that the objects name."""
    found = definitions()
    control_plane.apply(found)
    for each in found:
        name = f"crd/{each['metadata']['name']}"
        control_plane.kubectl("wait", "--for=condition=Established", name, "--timeout=60s")
    namespaces = (NAMESPACE, "kafka", "store", "ctr-news")
    control_plane.apply(
        [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": n}} for n in namespaces]
    )
    return control_plane


def _in_namespace(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = copy.deepcopy(objects)
    for each in found:
        each["metadata"].setdefault("namespace", NAMESPACE)
    return found


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_api_server_accepts_every_object_of_the_chart(
    prepared: ControlPlane, name: str
) -> None:
    objects = _in_namespace(render(example(name)))
    answer = prepared.apply(objects, dry_run=True)
    assert len(answer.splitlines()) == len(objects)


@pytest.mark.parametrize("name", BESIDE)
def test_the_api_server_accepts_every_object_beside_the_chart(
    prepared: ControlPlane, name: str
) -> None:
    objects = beside(name)
    answer = prepared.apply(objects, dry_run=True)
    assert len(answer.splitlines()) == len(objects)


def test_the_api_server_refuses_an_unknown_key_of_a_deployment_and_of_a_topic(
    prepared: ControlPlane,
) -> None:
    objects = _in_namespace(render(example("small")))
    deployment = next(each for each in objects if each["kind"] == "Deployment")
    deployment["spec"]["replica"] = 2
    with pytest.raises(Refused, match="replica"):
        prepared.apply([deployment], dry_run=True)
    topic = beside("kafka")[0]
    topic["spec"]["partitons"] = 2
    with pytest.raises(Refused, match="partitons"):
        prepared.apply([topic], dry_run=True)
