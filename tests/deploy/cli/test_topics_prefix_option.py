"""Tests --topics-prefix: every command that connects has it, and its connections use it."""

import os

import pytest

from headrace.deploy.connections import environment_names, kafka_settings
from headrace.deploy.local import pipeline_usage
from headrace.deploy.models.shipped import path_of
from headrace.ingest.errors import KafkaRefused
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
