"""`headrace serving alias` on a running server: show, switch, revert, and errors."""

import pytest

from headrace.deploy.cli.serving.serving_commands import aliases_of
from headrace.deploy.errors import BadOption, DeployError
from tests.serving.models.alias_server import alias_server


def test_the_alias_command_shows_switches_and_reverts_an_alias() -> None:
    with alias_server() as (url, command):
        assert command() == ""
        assert command("production", "news") == f"{url}  production is news"
        changed = command("production", "news-2", "--expected", "news")
        assert changed.endswith("production is news-2, before news")
        assert command("production", "--revert").endswith("production is news, before news-2")
        assert command().endswith("production is news, before news-2")
        with pytest.raises(DeployError, match="expected one of the models"):
            command("production", "old")
        with pytest.raises(DeployError, match="got shadow"):
            command("shadow")


def test_initial_aliases_are_given_as_pairs() -> None:
    assert aliases_of(["production=news", "shadow=b"]) == {"production": "news", "shadow": "b"}
    with pytest.raises(BadOption, match="ALIAS=MODEL"):
        aliases_of(["production"])
