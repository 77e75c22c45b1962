"""The chart renders objects that Kubernetes accepts, and commands that headrace accepts."""

import re

import pytest
import yaml

from headrace.ingest.kafka.topics import examples_topic, joiner_group
from headrace.learner.spec.model_spec import parse_spec
from tests.deploy.chart.commands import command_of, unknown_variables
from tests.deploy.chart.helm import (
    CHART,
    EXAMPLES,
    KUBERNETES,
    Object,
    containers_of,
    example,
    faults_of_chart,
    pod_of,
    release,
    render,
    validate,
)

both = pytest.mark.parametrize("name", EXAMPLES)


@both
def test_the_linter_of_helm_finds_no_fault_in_the_chart(name: str) -> None:
    assert faults_of_chart(example(name)) == []


@both
@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_accepts_every_object_of_the_chart(name: str, version: str) -> None:
    for each in release(name):
        validate(each, version)


def containers(name: str) -> list[Object]:
    return [container for each in release(name) for container in containers_of(each)]


@both
def test_headrace_accepts_the_arguments_and_variables_of_every_container(name: str) -> None:
    commands = {command_of(each["args"])[-1] for each in containers(name)}
    assert {"join", "keep", "run", "collect", "init", "topics"} <= commands
    assert set[str]().union(*(unknown_variables(each["env"]) for each in containers(name))) == set()


@both
def test_containers_run_without_rights_on_a_read_only_root(name: str) -> None:
    for container in containers(name):
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] is True
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
    for pod in filter(None, map(pod_of, release(name))):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False


def test_secrets_reach_processes_by_reference_only() -> None:
    named = {
        variable["name"]: variable
        for container in containers("large")
        for variable in container["env"]
        if re.search("PASSWORD|SECRET|CLIENT", variable["name"])
    }
    assert {"HEADRACE_KAFKA_CLIENT", "HEADRACE_REDIS_PASSWORD"} <= set(named)
    assert all("secretKeyRef" in each["valueFrom"] for each in named.values())


@both
def test_specs_of_the_examples_are_valid(name: str) -> None:
    for key, model in example(name)["models"].items():
        spec = parse_spec(model["spec"], f"{key}.toml")
        assert spec.name.replace("_", "-") == key


def test_autoscaling_by_lag_reads_the_groups_and_topics_of_the_model() -> None:
    triggers = {
        each["metadata"]["name"]: each["spec"]["triggers"][0]["metadata"]
        for each in release("large")
        if each["kind"] == "ScaledObject"
    }
    joiner, learner = triggers["demo-news-joiner"], triggers["demo-news-learner"]
    assert joiner["consumerGroup"] == f"ctr.{joiner_group('news')}"
    assert (learner["consumerGroup"], learner["topic"]) == (
        "ctr.headrace.news.learner",
        f"ctr.{examples_topic('news')}",
    )
    # learners that step together are a group of fixed size
    assert sorted(triggers) == ["demo-news-joiner", "demo-news-learner", "demo-server"]


def test_every_container_has_the_prefix_of_its_release() -> None:
    for name, expected in (("small", None), ("large", "ctr.")):
        for container in containers(name):
            found = {one["name"]: one.get("value") for one in container["env"]}
            assert found.get("HEADRACE_TOPICS_PREFIX") == expected


def _learner_scaling(objects: list[Object]) -> Object:
    [spec] = [
        each["spec"]
        for each in objects
        if each["kind"] == "ScaledObject" and each["metadata"]["name"] == "demo-news-learner"
    ]
    found: Object = spec
    return found


def test_learners_scale_by_lag_and_rate_and_keep_their_number_while_logs_are_full() -> None:
    values = example("large")
    spec = _learner_scaling(release("large"))
    modifiers = spec["advanced"]["scalingModifiers"]
    keep, rate = "full > 0 && pods > 0 ? pods * 1000 : ", "rate * 1000 / 20000"
    assert modifiers["formula"] == f"{keep}(rate / 20000 > lag / 1000 ? {rate} : lag)"
    # the target is per pod: a result of `pods * target` asks for the pods that run
    assert (modifiers["target"], modifiers["metricType"]) == ("1000", "AverageValue")
    assert [each["name"] for each in spec["triggers"]] == ["lag", "full", "pods", "rate"]
    scaling = values["models"]["news"]["learners"]["scaling"]
    del scaling["examples"]
    modifiers = _learner_scaling(render(values))["advanced"]["scalingModifiers"]
    assert modifiers["formula"] == f"{keep}lag"
    scaling["lag"] = 2_000_000  # a whole number, also in text
    spec = _learner_scaling(render(values))
    assert spec["triggers"][0]["metadata"]["lagThreshold"] == "2000000"
    assert spec["advanced"]["scalingModifiers"]["target"] == "2000000"
    del values["keda"]["prometheus"]
    values["server"]["scaling"]["max"] = 0
    spec = _learner_scaling(render(values))
    assert "scalingModifiers" not in spec["advanced"]
    assert [each["type"] for each in spec["triggers"]] == ["kafka"]


def test_scaling_by_queries_without_prometheus_and_a_row_cache_with_relays_are_refused() -> None:
    scaled = example("large")
    del scaled["keda"]["prometheus"]
    learners_alone = {**scaled, "server": {**scaled["server"], "scaling": {"max": 0}}}
    cached = example("small") | {"relay": {"enabled": True}}
    cached["server"]["mostRows"] = 5_000
    for values, message in (
        (scaled, "keda.prometheus.address"),
        (learners_alone, "keda.prometheus.address"),
        (cached, "server.mostRows: expected 0 with relay.enabled"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            render(values)


def test_queries_of_autoscalers_name_metrics_that_headrace_exports() -> None:
    documented = (CHART.parents[1] / "docs/reference/metrics.md").read_text()
    queries = [
        trigger["metadata"]["query"]
        for each in release("large")
        if each["kind"] == "ScaledObject"
        for trigger in each["spec"]["triggers"]
        if trigger["type"] == "prometheus"
    ]
    assert len(queries) == 4
    for query in queries:
        [name] = re.findall(r"headrace_\w+", query)
        assert f"`{name}`" in documented


def test_every_autoscaler_grows_at_once_and_shrinks_by_a_pod_a_minute() -> None:
    specs = [
        each["spec"]
        for each in release("large")
        if each["kind"] in ("HorizontalPodAutoscaler", "ScaledObject")
    ]
    assert len(specs) == 4
    for spec in specs:
        least = spec.get("minReplicas", spec.get("minReplicaCount"))
        assert least >= 1
        behavior = (
            spec.get("behavior") or (spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"])
        )
        assert behavior["scaleUp"]["stabilizationWindowSeconds"] == 0
        assert behavior["scaleDown"]["policies"] == [
            {"type": "Pods", "value": 1, "periodSeconds": 60}
        ]


def test_replicas_of_a_scaled_process_belong_to_its_autoscaler() -> None:
    scaled = {
        each["spec"]["scaleTargetRef"]["name"]
        for each in release("large")
        if each["kind"] in ("HorizontalPodAutoscaler", "ScaledObject")
    }
    deployments = {
        each["metadata"]["name"]: each["spec"]
        for each in release("large")
        if each["kind"] == "Deployment"
    }
    assert scaled < set(deployments)
    for name, spec in deployments.items():
        assert ("replicas" in spec) is (name not in scaled), name


def test_a_server_has_shared_memory_for_three_times_the_rows_of_all_models() -> None:
    [server] = [
        pod
        for each in release("large")
        if each["metadata"]["name"] == "demo-server" and (pod := pod_of(each))
    ]
    [shared] = [each["emptyDir"] for each in server["volumes"] if each["name"] == "shm"]
    rows = 20_000_000 * 64 + 5_000_000 * 160
    assert shared == {"medium": "Memory", "sizeLimit": f"{64 + 3 * rows // 2**20}Mi"}


def test_each_model_has_one_relay_and_servers_read_it_if_relays_are_enabled() -> None:
    def parts(name: str) -> dict[str, Object]:
        return {
            each["metadata"]["name"]: each["spec"]
            for each in release(name)
            if each["kind"] == "Deployment"
        }

    large, small = parts("large"), parts("small")
    relays = {name: spec for name, spec in large.items() if name.endswith("-relay")}
    assert sorted(relays) == ["demo-news-deep-relay", "demo-news-relay"]
    for spec in relays.values():
        # two relays of a model would fence each other in turn
        assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    arguments = {
        name: spec["template"]["spec"]["containers"][0]["args"] for name, spec in large.items()
    }
    assert "--relay" in arguments["demo-server"]
    assert not any(name.endswith("-relay") for name in small)
    [server] = small["demo-server"]["template"]["spec"]["containers"]
    assert "--relay" not in server["args"]


def test_the_rules_of_the_chart_are_those_of_monitoring() -> None:
    [rules] = [each["spec"] for each in release("large") if each["kind"] == "PrometheusRule"]
    assert rules == yaml.safe_load((CHART.parent / "monitoring/rules.yml").read_text())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"models": None}, "models: expected at least one", id="without a model"),
        pytest.param({"kafka": {"bootstrap": ""}}, "kafka.bootstrap", id="without Kafka"),
        pytest.param({"kafka": {"bootstrap": "kafka"}}, "bootstrap", id="Kafka without a port"),
        pytest.param({"topicsPrefix": "team/a"}, "topicsPrefix", id="prefix that Kafka refuses"),
        pytest.param({"redis": {"url": ""}}, "redis.url", id="without a store"),
        pytest.param({"redis": {"url": "redis://a:b@c"}}, "url", id="password in the URL"),
        pytest.param({"server": {"anyone": False}}, "tokensSecret", id="server without tokens"),
        pytest.param({"collector": {"anyone": False}}, "tokensSecret", id="collector without"),
        pytest.param({"servers": {}}, "servers", id="unknown key"),
        pytest.param({"models": {"Site": {}}}, "Site", id="name that Kubernetes refuses"),
    ],
)
def test_wrong_values_are_refused_with_the_key(change: Object, message: str) -> None:
    values = example("small")
    for key, value in change.items():
        merged = {**values.get(key, {}), **value} if isinstance(value, dict) else value
        values[key] = {} if merged is None else merged
    with pytest.raises(ValueError, match=re.escape(message)):
        render(values)
