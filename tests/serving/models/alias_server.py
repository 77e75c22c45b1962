"""A server of the models news and news-2, and `headrace serving alias` against it."""

import contextlib
from collections.abc import Callable, Iterator

from click.testing import CliRunner

from headrace.deploy.cli.main import app
from headrace.serving.models.loading import StoreModel
from tests.serving.models.two_models import second
from tests.serving.served_models import eventually, memory_store, news
from tests.serving.server_in_thread import SETTINGS, ready, running


@contextlib.contextmanager
def alias_server() -> Iterator[tuple[str, Callable[..., str]]]:
    """Yield the URL of the server, and a function that returns the output of the command."""
    models = [
        StoreModel(news(), memory_store(news())),
        StoreModel(second(), memory_store(second())),
    ]
    with running(models, SETTINGS) as server:
        eventually(lambda: ready(server.url))

        def command(*words: str) -> str:
            ended = CliRunner().invoke(app, ["serving", "alias", *words, "--server", server.url])
            if ended.exception is not None and not isinstance(ended.exception, SystemExit):
                raise ended.exception
            assert ended.exit_code == 0, ended.output
            return ended.output.strip()

        yield server.url, command
