"""Tests --topics-prefix: every command that connects has it, and its connections use it."""

import os

import pytest
from click.testing import CliRunner

from headrace.deploy.cli.main import app
from headrace.deploy.connections import environment_names, kafka_settings
from headrace.deploy.models.shipped import path_of
from headrace.ingest.errors import KafkaRefused
from headrace.learner.spec.model_spec import load_spec

VARIABLE = "HEADRACE_TOPICS_PREFIX"
MODEL = path_of("demo")
NAME = load_spec(MODEL).name


def test_settings_of_kafka_have_the_prefix_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert kafka_settings("kafka:9092", None).names.prefix == ""
    monkeypatch.setenv(VARIABLE, "team-a.")
    assert kafka_settings("kafka:9092", None).names.physical("clicks") == "team-a.clicks"
    monkeypatch.setenv(VARIABLE, "team a")
    with pytest.raises(KafkaRefused, match=VARIABLE):
        environment_names()


def test_a_prefix_lasts_as_long_as_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    arguments = ["pserver", "init", "--model", str(MODEL), "--topics-prefix", "not allowed"]
    refused = CliRunner().invoke(app, arguments)
    assert isinstance(refused.exception, KafkaRefused)
    assert VARIABLE not in os.environ


def test_the_roles_of_an_environment_may_touch_its_keys_only() -> None:
    arguments = ["pserver", "acl", "--model", str(MODEL), "--role", "learner"]
    printed = CliRunner().invoke(app, [*arguments, "--topics-prefix", "team-a."]).output
    assert f"ACL SETUSER team-a.{NAME}-learner reset" in printed
    assert f"~{{team-a.{NAME}}}:* ~{{team-a.{NAME}:*}}:*" in printed
