"""Starts a server of a test, and stops it at the end."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from headrace.deploy.local.services.kafka_jars import kafka_jars


class Server(Protocol):
    """A node or a cluster of Kafka or Valkey."""

    def launch(self) -> None:
        """Start the processes."""

    def wait_ready(self) -> None:
        """Wait until it answers."""

    def stop(self) -> None:
        """End the processes."""


ServerT = TypeVar("ServerT", bound=Server)

SHARED_PARTITIONS = 2
"""Partitions of the logs' topics in the broker of all tests: the first test creates them."""


@contextmanager
def running_server(server: ServerT) -> Iterator[ServerT]:
    """Start the server; stop it when the block ends, also if it never became ready."""
    try:
        server.launch()
        server.wait_ready()
        yield server
    finally:
        server.stop()


def jars() -> list[Path]:
    """Return Kafka's jars: those in HEADRACE_KAFKA_JARS, else downloaded ones."""
    named = os.environ.get("HEADRACE_KAFKA_JARS")
    return kafka_jars(Path(named) if named else None)
