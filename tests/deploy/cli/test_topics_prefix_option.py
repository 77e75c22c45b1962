"""Tests --topics-prefix: every command that connects has it, and its connections use it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.deploy.connections import environment_names, kafka_settings
from headrace.deploy.local import pipeline_usage
from headrace.deploy.models.shipped import path_of
from headrace.ingest.errors import KafkaRefused
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import partition_counts
from tests.deploy.in_process import Commands

VARIABLE = "HEADRACE_TOPICS_PREFIX"
MODEL = ("--model", str(path_of("demo")))


def test_settings_of_kafka_have_the_prefix_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert kafka_settings("kafka:9092", None).names.prefix == ""
    monkeypatch.setenv(VARIABLE, "team-a.")
    assert kafka_settings("kafka:9092", None).names.physical("clicks") == "team-a.clicks"
    monkeypatch.setenv(VARIABLE, "team a")
    with pytest.raises(KafkaRefused, match=VARIABLE):
        environment_names()


def test_a_prefix_lasts_as_long_as_its_command_and_reaches_the_parts_that_it_starts(
    headrace: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []
    monkeypatch.setattr(pipeline_usage, "keep_up", lambda *_: given.append(os.environ[VARIABLE]))
    headrace("up", *MODEL, "--topics-prefix", "team-a.")
    assert (given, VARIABLE in os.environ) == (["team-a."], False)
    assert VARIABLE in headrace("pserver", "init", *MODEL, "--topics-prefix", "not allowed").err
    assert VARIABLE not in os.environ


def test_the_roles_of_an_environment_may_touch_its_keys_only(headrace: Commands) -> None:
    role = ("--role", "learner", "--topics-prefix", "team-a.")
    printed = headrace("pserver", "acl", *MODEL, *role).out
    assert "ACL SETUSER team-a.demo-learner reset" in printed
    assert "~{team-a.demo}:* ~{team-a.demo:*}:*" in printed


def test_a_model_of_an_environment_is_missing_in_another(
    headrace: Commands, kafka: str, valkey: str, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    name, team = fresh_name("same"), fresh_name("team")
    path = tmp_path / "model.toml"
    path.write_text(path_of("demo").read_text().replace('name = "demo"', f'name = "{name}"'))
    own = ("--model", str(path), "--topics-prefix", f"{team}.")
    assert headrace("ingest", "topics", *own, "--kafka", kafka, "--partitions", "2").code == 0
    assert headrace("pserver", "init", *own, "--redis", valkey, "--buckets", "2").code == 0
    topics = partition_counts(KafkaSettings(kafka))
    assert f"{team}.examples.{name}" in topics
    assert f"examples.{name}" not in topics
    assert headrace("pserver", "inspect", *own, "--redis", valkey).code == 0
    assert headrace("pserver", "inspect", *own[:2], "--redis", valkey).code == 2
