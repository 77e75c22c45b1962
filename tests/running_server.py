"""Starts a server of a test, and stops it at the end.

A broker loads 10,000 classes, which takes half of the time of its start. The first run of the tests
in an environment keeps them in a cache of Java (JEP 514), which all later brokers map.
"""

import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol, TypeVar

from headrace.deploy.local.services.kafka import KafkaNode, KafkaNodeSettings
from headrace.deploy.local.services.kafka_jars import LOCK_PATH, kafka_jars


class Server(Protocol):
    """A node or a cluster of Kafka or Valkey."""

    def launch(self) -> None:
        """Start the processes."""

    def wait_ready(self) -> None:
        """Wait until it answers."""

    def stop(self) -> None:
        """End the processes."""


ServerT = TypeVar("ServerT", bound=Server)

_JAVA_OPTIONS = "JAVA_TOOL_OPTIONS"
_CACHE = Path(sys.prefix, f"kafka-{hashlib.sha256(LOCK_PATH.read_bytes()).hexdigest()[:12]}.aot")
_AOT = "-XX:+IgnoreUnrecognizedVMOptions -XX:AOTCache"
"""A Java of another version, such as that of Spark, does without."""
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
    found = kafka_jars(Path(named) if named else None)
    if not _CACHE.exists() and _JAVA_OPTIONS not in os.environ:
        # one process makes it, and the others go on without
        with _CACHE.with_suffix(".lock").open("w") as lock, suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _make_class_cache(found)
    use_class_cache()
    return found


def use_class_cache() -> None:
    """Let brokers that this process and its children start map the cached classes, if any are."""
    if _CACHE.exists():
        os.environ.setdefault(_JAVA_OPTIONS, f"{_AOT}={_CACHE}")


def _make_class_cache(jars: Sequence[Path]) -> None:
    """Start a broker that writes down the classes that it has loaded when it ends."""
    with tempfile.TemporaryDirectory(prefix="headrace-tests-") as directory:
        partial = Path(directory) / _CACHE.name
        os.environ[_JAVA_OPTIONS] = f"{_AOT}Output={partial}"
        try:
            with running_server(KafkaNode(Path(directory), jars, KafkaNodeSettings(grace_s=300.0))):
                pass
        finally:
            del os.environ[_JAVA_OPTIONS]
        if partial.exists():
            shutil.move(partial, _CACHE)
