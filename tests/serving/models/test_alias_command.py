"""`headrace serving alias` on a running server: show, switch, split, revert, and errors."""

import pytest
from click.testing import CliRunner

from headrace.deploy.cli.main import app
from headrace.deploy.cli.serving.serving_commands import aliases_of
from headrace.deploy.errors import BadOption, DeployError
from headrace.serving.models.loading import StoreModel
from tests.serving.models.two_models import second
from tests.serving.served_models import eventually, memory_store, news
from tests.serving.server_in_thread import ready, running


def test_the_alias_command_shows_switches_splits_and_reverts_an_alias() -> None:
    models = [StoreModel(each, memory_store(each)) for each in (news(), second())]
    with running(models) as server:
        eventually(lambda: ready(server.url))

        def command(*words: str) -> str:
            ended = CliRunner().invoke(app, ["serving", "alias", *words, "--server", server.url])
            if ended.exception is not None and not isinstance(ended.exception, SystemExit):
                raise ended.exception
            assert ended.exit_code == 0, ended.output
            return ended.output.strip()

        assert command() == ""
        assert command("production", "news") == f"{server.url}  production is news"
        changed = command("production", "news-2", "--expected", "news")
        assert changed.endswith("production is news-2, before news")
        assert command("production", "--revert").endswith("production is news, before news-2")
        assert command().endswith("production is news, before news-2")
        with pytest.raises(DeployError, match="expected one of the models"):
            command("production", "old")
        with pytest.raises(DeployError, match="got shadow"):
            command("shadow")
        split = command("production", "news=95", "news-2=5", "--by", "user_id")
        assert split.endswith("production is news=95 news-2=5 by user_id, before news")
        more = ["production", "news=80", "news-2=20", "--expected", "news=95 news-2=5 by user_id"]
        assert command(*more).endswith("is news=80 news-2=20, before news=95 news-2=5 by user_id")
        assert command("production", "--revert").endswith("before news=80 news-2=20")


def test_initial_aliases_are_given_as_pairs() -> None:
    assert aliases_of(["production=news", "shadow=b"]) == {"production": "news", "shadow": "b"}
    with pytest.raises(BadOption, match="ALIAS=MODEL"):
        aliases_of(["production"])
