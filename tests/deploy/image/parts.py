"""Starts the parts of a pipeline in containers, against a Kafka and a store on this machine."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import httpx

from headrace.deploy.local.services.ports import free_port

if TYPE_CHECKING:
    from tests.deploy.command import Running
    from tests.deploy.image.container import UnpackedImage

COMMANDS = {
    "joiner": ("ingest", "join"),
    "learner": ("learner", "run"),
    "keeper": ("pserver", "keep"),
    "server": ("serving", "run"),
    "collector": ("ingest", "collect"),
    "evaluation": ("evaluate", "run"),
    "scorer": ("serving", "score"),
}
GENEROUS_S = 600.0
_POLL_S = 0.05


class Part(NamedTuple):
    """A container whose `/health/ready` has answered 200."""

    container: Running
    port: int
    """Port of its API, if it has one."""


class PartsInContainers:
    """The model of a folder's `model.toml`, its Kafka and its store."""

    def __init__(self, image: UnpackedImage, folder: Path, kafka: str, redis: str) -> None:
        folder.chmod(0o755)  # the user of the container is another one
        self._image = image
        self._folder = folder
        self._variables = {
            "HEADRACE_KAFKA": kafka,
            "HEADRACE_REDIS": redis,
            "HEADRACE_MODEL": "/etc/headrace/model.toml",
            "HEADRACE_TOPICS_PREFIX": f"image-{secrets.token_hex(3)}.",
        }

    def create(self) -> None:
        """Create the topics and the model."""
        for words in (
            ("ingest", "topics", "--partitions", "2"),
            ("pserver", "init", "--buckets", "4"),
        ):
            self._image.output(*words, config=self._folder, **self._variables)

    @contextmanager
    def ready(self, name: str) -> Iterator[Part]:
        """Start a part, and wait until it is ready."""
        port, metrics = free_port(), free_port()
        given = {"HEADRACE_METRICS_PORT": str(metrics), "HEADRACE_PORT": str(port)}
        variables = {**self._variables, **given}
        with self._image.running(*COMMANDS[name], config=self._folder, **variables) as container:
            wait_ready(container, metrics)
            yield Part(container, port)


def wait_ready(container: Running, port: int) -> None:
    """Wait for 200 of `/health/ready`; fails with the output if the container ends first."""
    deadline_s = time.monotonic() + GENEROUS_S
    while True:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/health/ready", timeout=10).status_code == 200:
                return
        except httpx.TransportError:
            pass
        assert container.process.poll() is None, container.output
        assert time.monotonic() < deadline_s, container.output
        time.sleep(_POLL_S)
