"""The page of a server in a browser: the explanation of one score."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import uvicorn

from headrace.serving.page.routes import page_routes
from tests.deploy.browser import document, needs_chromium
from tests.serving.api.app_client import complete
from tests.serving.served_models import Serving, deltas_of_article, eventually


class _NoFigures:
    def answer(self, since_ms: int) -> dict[str, Any]:
        nothing: dict[str, list[Any]] = {
            "times": [],
            "curves": [],
            "processes": [],
            "partitions": [],
            "accuracy": [],
        }
        return {**nothing, "now_ms": since_ms, "shards": {}, "dead_letters": {}}


@contextmanager
def _listening(serving: Serving) -> Iterator[str]:
    app = serving.app
    app.include_router(page_routes(_NoFigures()))  # type: ignore[arg-type]
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    thread = Thread(target=server.run)
    thread.start()
    try:
        eventually(lambda: server.started)
        [address] = server.servers[0].sockets
        yield f"http://127.0.0.1:{address.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(60)


@needs_chromium
def test_the_page_shows_the_parts_of_the_first_candidates_score() -> None:
    serving, pusher = complete()
    pusher.push(deltas_of_article(serving.spec, "article_id-1", -3.0))
    serving.follow()
    with _listening(serving) as url:
        dom = document(url + "#explain")
    assert "exact: the parts sum to the log-odds" in dom
    shown = dict(re.findall(r'<td>([\w-]+)</td><td class="n">([^<]+)</td>', dom))
    numbers = {name: float(text.replace("\u2212", "-")) for name, text in shown.items()}
    whole = numbers.pop("log-odds")
    assert numbers["article"] > 0
    assert abs(sum(numbers.values()) - whole) < 0.001 * len(numbers)
