"""The objects beside the chart are valid, and say of headrace what is true."""

import re

import pytest
import yaml

from headrace.ingest.kafka.topics import topics_for
from headrace.serving.evaluation.evaluation_process import evaluation_topics
from tests.deploy.chart.commands import command_of
from tests.deploy.chart.helm import (
    CHART,
    KUBERNETES,
    beside,
    containers_of,
    example,
    render,
    validate,
)

NAMES = ("priorities", "tenant", "kafka", "environment", "valkey", "experiments")


@pytest.mark.parametrize("name", NAMES)
def test_every_object_beside_the_chart_is_valid(name: str) -> None:
    found = beside(name)
    assert found
    for each in found:
        validate(each, KUBERNETES[-1])


def test_topics_of_the_example_are_those_that_headrace_would_create() -> None:
    topics = [each for each in beside("kafka") if each["kind"] == "KafkaTopic"]
    found = {
        each["metadata"]["name"]: (
            each["spec"]["partitions"],
            each["spec"]["replicas"],
            each["spec"]["config"],
        )
        for each in topics
    }
    count = example("small")["models"]["site"]["partitions"]
    wanted = (*topics_for("site", count, replicas=3), *evaluation_topics("site", 3))
    assert found == {
        each.name: (each.partitions, each.replicas, {**each.required, **each.preferred})
        for each in wanted
    }


def test_users_of_an_environment_have_quotas_and_no_permission_beyond_their_prefix() -> None:
    users = beside("environment")
    assert [each["kind"] for each in users] == ["KafkaUser", "KafkaUser"]
    for user in users:
        assert user["spec"]["quotas"]["producerByteRate"] > 0
        for acl in user["spec"]["authorization"]["acls"]:
            assert acl["resource"]["name"].startswith("team-a."), acl
            assert acl["resource"]["type"] != "cluster"


def test_quotas_of_the_example_are_those_of_the_guide() -> None:
    quotas = beside("environment")[0]["spec"]["quotas"]
    guide = (CHART.parents[1] / "docs/guides/operating.md").read_text()
    found = re.search(r"--entity-name team-a \\\n\s+--add-config (\S+)", guide)
    assert found is not None
    settings = dict(each.split("=") for each in found[1].split(","))
    names = {
        "producer_byte_rate": "producerByteRate",
        "consumer_byte_rate": "consumerByteRate",
        "request_percentage": "requestPercentage",
    }
    assert {names[key]: int(value) for key, value in settings.items()}.items() <= quotas.items()


def test_experiments_of_the_example_are_a_command_of_headrace() -> None:
    (job,) = beside("experiments")
    (container,) = containers_of(job)
    assert command_of(container["args"]) == ["experiment", "run"]


def test_priorities_of_the_example_fit_each_other_and_the_chart() -> None:
    classes = {each["metadata"]["name"]: each["value"] for each in beside("priorities")}
    online, experiments, batch = (
        classes[f"headrace-{name}"] for name in ("online", "experiments", "batch")
    )
    assert online > experiments > 0 > batch
    quotas = [each for each in beside("tenant") if each["kind"] == "ResourceQuota"]
    scopes = [each["spec"]["scopeSelector"]["matchExpressions"][0] for each in quotas]
    assert {name for each in scopes for name in each["values"]} == set(classes)
    (job,) = beside("experiments")
    assert job["spec"]["template"]["spec"]["priorityClassName"] in classes
    values = {**example("small"), "pods": {"priorityClassName": "headrace-online"}}
    assert "priorityClassName: headrace-online" in yaml.safe_dump_all(render(values))
