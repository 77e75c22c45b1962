"""A release of the chart has the objects that it should, and they refer to each other."""

from collections import defaultdict

import pytest

from tests.deploy.chart.helm import EXAMPLES, Object, example, pod_of, release, render

both = pytest.mark.parametrize("name", EXAMPLES)
OBJECTS = {
    "small": {
        "ConfigMap": "demo-models demo-models-setup",
        "Deployment": "demo-collector demo-server demo-site-evaluation demo-site-joiner"
        " demo-site-keeper demo-site-learner",
        "Job": "demo-site-setup",
        "NetworkPolicy": "demo-collector demo-learners demo-metrics demo-server",
        "PodDisruptionBudget": "demo-site-joiner demo-site-keeper",
        "Service": "demo-collector demo-server",
        "ServiceAccount": "demo",
    },
    "large": {
        "ConfigMap": "demo-models demo-models-setup",
        "CronJob": "demo-news-deep-snapshot demo-news-snapshot",
        "Deployment": "demo-collector demo-news-deep-evaluation demo-news-deep-joiner"
        " demo-news-deep-keeper demo-news-deep-relay demo-news-deep-sink demo-news-evaluation"
        " demo-news-joiner demo-news-keeper demo-news-learner demo-news-relay demo-news-sink"
        " demo-server",
        "HorizontalPodAutoscaler": "demo-collector",
        "Job": "demo-news-deep-setup demo-news-setup",
        "NetworkPolicy": "demo-collector demo-learners demo-metrics demo-server",
        "PodDisruptionBudget": "demo-collector demo-news-deep-joiner demo-news-deep-keeper"
        " demo-news-joiner demo-news-keeper demo-news-learner demo-server",
        "PodMonitor": "demo",
        "PrometheusRule": "demo",
        "ScaledObject": "demo-news-joiner demo-news-learner demo-server",
        "Service": "demo-collector demo-news-deep-learner demo-server",
        "ServiceAccount": "demo",
        # learners that step together have stable names
        "StatefulSet": "demo-news-deep-learner",
    },
}
"""Names by kind."""
FROM: dict[str, Object] = {
    "small": {"metrics": None, "http": None},
    "large": {
        part: [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}]
        for part, namespace in (("metrics", "monitoring"), ("http", "site"))
    },
}
"""Pods that may connect, as the values of the examples say; None: every pod."""


def _pods(objects: list[Object]) -> list[tuple[dict[str, str], Object]]:
    """Labels and `spec` of the pods of each Deployment and StatefulSet."""
    return [
        (each["spec"]["template"]["metadata"]["labels"], pod)
        for each in objects
        if each["kind"] in ("Deployment", "StatefulSet") and (pod := pod_of(each))
    ]


def _selected(
    selector: dict[str, str], objects: list[Object]
) -> list[tuple[dict[str, str], Object]]:
    return [(labels, pod) for labels, pod in _pods(objects) if selector.items() <= labels.items()]


@both
def test_an_example_has_these_objects(name: str) -> None:
    found = defaultdict(list)
    for each in release(name):
        found[each["kind"]].append(each["metadata"]["name"])
    assert {kind: " ".join(sorted(names)) for kind, names in found.items()} == OBJECTS[name]


@both
def test_a_service_leads_to_a_port_of_its_pods(name: str) -> None:
    for service in (each for each in release(name) if each["kind"] == "Service"):
        [(_, pod)] = _selected(service["spec"]["selector"], release(name))
        ports = {port["name"] for port in pod["containers"][0]["ports"]}
        for port in service["spec"]["ports"]:
            target = port.get("targetPort", port["port"])
            assert target in ports or isinstance(target, int)


@both
def test_a_disruption_takes_one_pod_of_a_process_at_a_time(name: str) -> None:
    for budget in (each for each in release(name) if each["kind"] == "PodDisruptionBudget"):
        spec = budget["spec"]
        assert (spec["maxUnavailable"], spec["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
        assert len(_selected(spec["selector"]["matchLabels"], release(name))) == 1


@both
def test_pods_accept_connections_to_metrics_and_http_only(name: str) -> None:
    policies = {
        each["metadata"]["name"]: each["spec"]
        for each in release(name)
        if each["kind"] == "NetworkPolicy"
    }
    assert all(spec["policyTypes"] == ["Ingress"] for spec in policies.values())
    everything = policies.pop("demo-metrics")
    selector = everything["podSelector"]["matchLabels"]
    assert len(_selected(selector, release(name))) == len(_pods(release(name)))
    learners = policies.pop("demo-learners")
    [rule] = learners["ingress"]
    assert rule == {"from": [{"podSelector": learners["podSelector"]}]}
    [rule] = everything["ingress"]
    assert rule.pop("from", None) == FROM[name]["metrics"]
    assert rule == {"ports": [{"port": 9100, "endPort": 9164, "protocol": "TCP"}]}
    for each, spec in policies.items():
        [(labels, _)] = _selected(spec["podSelector"]["matchLabels"], release(name))
        assert f"demo-{labels['app.kubernetes.io/component']}" == each
        [rule] = spec["ingress"]
        assert rule.pop("from", None) == FROM[name]["http"]
        assert rule == {"ports": [{"port": "http", "protocol": "TCP"}]}


@both
def test_probes_ask_for_health_and_a_start_may_take_ten_minutes(name: str) -> None:
    for _, pod in _pods(release(name)):
        for container in pod["containers"]:
            ports = {port["name"] for port in container["ports"]}
            for probe, path in (
                ("startupProbe", "/health/ready"),
                ("readinessProbe", "/health/ready"),
                ("livenessProbe", "/health/live"),
            ):
                assert container[probe]["httpGet"]["path"] == path
                assert container[probe]["httpGet"]["port"] in ports
            start = container["startupProbe"]
            assert start["periodSeconds"] * start["failureThreshold"] >= 600


@both
def test_a_container_has_a_limit_of_memory_and_requests_of_both(name: str) -> None:
    for _, pod in _pods(release(name)):
        for container in pod["containers"]:
            assert "memory" in container["resources"]["limits"]
            assert {"cpu", "memory"} <= set(container["resources"]["requests"])


@both
def test_a_changed_spec_restarts_the_pods_that_read_it(name: str) -> None:
    values = example(name)
    model = next(iter(values["models"].values()))
    model["spec"] += "\n# changed\n"
    annotation = "headrace/specs"

    def specs(objects: list[Object]) -> dict[str, str]:
        return {
            each["metadata"]["name"]: each["spec"]["template"]["metadata"]["annotations"][
                annotation
            ]
            for each in objects
            if each["kind"] in ("Deployment", "StatefulSet")
        }

    before, after = specs(release(name)), specs(render(values))
    assert set(before) == set(after)
    assert any(before[each] != after[each] for each in before)
    assert before["demo-server"] != after["demo-server"]
