"""Jobs of the chart try again what waiting can fix, and fail at once for an operator's mistake."""

from pathlib import Path
from typing import Any

import pytest

from headrace.runtime.termination import REFUSED, UNREACHABLE
from tests.deploy.chart.helm import EXAMPLES, containers_of, example, render
from tests.deploy.in_process import Commands


def status(
    run: Commands,
    words: list[str],
    kafka: str = "127.0.0.1:1",
    redis: str = "redis://127.0.0.1:1",
    client: str = "client.id=setup",
) -> int:
    """Return the exit status of a command; no server listens at the default addresses."""
    return run(
        *words, HEADRACE_KAFKA=kafka, HEADRACE_REDIS=redis, HEADRACE_KAFKA_CLIENT=client
    ).code


def jobs(name: str) -> list[dict[str, Any]]:
    """Return the `spec` of each Job of an example, those of a CronJob included."""
    objects = render(example(name))
    return [each["spec"] for each in objects if each["kind"] == "Job"] + [
        each["spec"]["jobTemplate"]["spec"] for each in objects if each["kind"] == "CronJob"
    ]


def next_step(job: dict[str, Any], code: int, conditions: tuple[str, ...] = ()) -> str:
    """Return the action of the first rule that matches a pod that failed, as Kubernetes does."""
    for rule in job["podFailurePolicy"]["rules"]:
        codes = rule.get("onExitCodes")
        if codes is not None:
            assert codes["operator"] == "In"
            assert "containerName" not in codes  # any container, also one that runs first
        found = {each["type"] for each in rule.get("onPodConditions", ())}
        if found & set(conditions) or (codes is not None and code in codes["values"]):
            return str(rule["action"])
    return "Count"


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_job_fails_at_once_for_a_mistake_and_tries_again_while_servers_are_away(
    name: str,
) -> None:
    found = jobs(name)
    assert found
    for job in found:
        assert next_step(job, REFUSED) == "FailJob"
        for passing in (UNREACHABLE, 1, 137, 143):
            assert next_step(job, passing) == "Count"
        assert next_step(job, 143, ("DisruptionTarget",)) == "Ignore"
        assert job["backoffLimit"] > 0
        # the only policy with which Kubernetes accepts these rules
        assert job["template"]["spec"]["restartPolicy"] == "Never"


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """Return the commands of the setup Job of a model, with its spec in a file of this machine."""
    values = example("small")
    folder = tmp_path_factory.mktemp("models")
    for key, model in values["models"].items():
        (folder / f"{key}.toml").write_text(model["spec"])
    [job] = [each for each in render(values) if each["kind"] == "Job"]
    found: list[list[str]] = [each["args"] for each in containers_of(job)]
    assert [each[:2] for each in found] == [["ingest", "topics"], ["pserver", "init"]]
    return [[word.replace("/etc/headrace/models", str(folder)) for word in each] for each in found]


def test_commands_of_the_setup_end_with_75_while_servers_are_away(
    commands: list[list[str]], headrace: Commands
) -> None:
    assert [status(headrace, words) for words in commands] == [UNREACHABLE] * 2


def test_commands_of_the_setup_end_with_2_for_a_mistake(
    commands: list[list[str]], headrace: Commands, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text('[model]\nname = "site"\narchitekture = "lr"\n')
    for words in commands:
        assert status(headrace, [*words, "--model", str(wrong)]) == REFUSED
        assert status(headrace, [*words, "--topics-prefix", "team/a"]) == REFUSED
    topics, store = commands
    assert status(headrace, topics, client="security.protocl=SSL") == REFUSED
    assert status(headrace, store, redis="localhost") == REFUSED
