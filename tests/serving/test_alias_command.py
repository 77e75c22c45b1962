"""`headrace serving alias` on a running server: show, switch, revert, and errors."""

import pytest
from typer.testing import CliRunner

from headrace.deploy.cli.main import app
from headrace.deploy.cli.serving import aliases_of
from headrace.deploy.errors import BadOption
from headrace.deploy.operations.aliases import AliasRefused
from headrace.serving.models.loading import StoreModel
from tests.serving.served_models import eventually, memory_store, news
from tests.serving.server_in_thread import SETTINGS, ready, running
from tests.serving.two_models import second


def test_the_alias_command_shows_switches_and_reverts_an_alias() -> None:
    models = [
        StoreModel(news(), memory_store(news())),
        StoreModel(second(), memory_store(second())),
    ]
    with running(models, SETTINGS) as server:
        eventually(lambda: ready(server.url))

        def command(*words: str) -> str:
            said = CliRunner().invoke(app, ["serving", "alias", *words, "--server", server.url])
            if said.exception is not None and not isinstance(said.exception, SystemExit):
                raise said.exception
            assert said.exit_code == 0, said.output
            return said.output.strip()

        assert command() == ""
        assert command("production", "news") == f"{server.url}  production is news"
        changed = command("production", "news-2", "--expected", "news")
        assert changed.endswith("production is news-2, before news")
        assert command("production", "--revert").endswith("production is news, before news-2")
        assert command().endswith("production is news, before news-2")
        with pytest.raises(AliasRefused, match="expected one of the models"):
            command("production", "old")
        with pytest.raises(AliasRefused, match="got shadow"):
            command("shadow")


def test_initial_aliases_are_given_as_pairs() -> None:
    assert aliases_of(["production=news", "shadow=b"]) == {"production": "news", "shadow": "b"}
    with pytest.raises(BadOption, match="ALIAS=MODEL"):
        aliases_of(["production"])
