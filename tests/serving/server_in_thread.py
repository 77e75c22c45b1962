"""A server in a thread of this process, with a real port."""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import httpx

from headrace.serving.models.loading import StoreModel
from headrace.serving.process import ServerSettings, run_server
from headrace.serving.replicas.follower import Following
from headrace.serving.requests.limits import RequestLimits
from tests.serving.served_models import eventually, news

SETTINGS = ServerSettings(
    port=0,
    following=Following(poll_interval_ms=2),
    limits=RequestLimits(waiting_ms=60_000),  # no request is shed, even on a slow machine
)


def at(store: Any) -> list[StoreModel]:
    return [StoreModel(news(), store)]


class Running:
    """A server in a thread of this process."""

    def __init__(self, store: Any, settings: ServerSettings) -> None:
        self.stop = threading.Event()
        self._ports: list[int] = []
        self._ended: list[BaseException | None] = []
        models = store if isinstance(store, list) else at(store)
        self._thread = threading.Thread(target=self._run, args=(models, settings))
        self._thread.start()
        eventually(lambda: self._ports or self._ended)

    def _run(self, models: Sequence[StoreModel], settings: ServerSettings) -> None:
        try:
            run_server(settings, models, self.stop, self._ports.append)
        except BaseException as error:  # noqa: BLE001 - handed to the test, which raises it
            self._ended.append(error)
        else:
            self._ended.append(None)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def port(self) -> int:
        return self._ports[0]

    def join(self) -> None:
        """Wait for the end; raise the error of the server, if any."""
        self._thread.join(60)
        [error] = self._ended
        if error is not None:
            raise error


@contextlib.contextmanager
def running(store: Any, settings: ServerSettings = SETTINGS) -> Iterator[Running]:
    server = Running(store, settings)
    try:
        yield server
    finally:
        server.stop.set()
        server.join()


def ready(url: str) -> bool:
    return httpx.get(f"{url}/health/ready", timeout=60).status_code == 200
