"""Starts Kafka and Valkey on this machine, or uses those at given addresses.

    with LocalServices() as machine:
        machine.kafka   # "127.0.0.1:21001"
        machine.redis   # "redis://127.0.0.1:21002"

Both are launched before the wait for either, so that they start together. Their data is in one
directory: that of the caller, which the next start uses again, or a temporary one, which is removed
at the end. If this process is killed, the guards of its child processes remove it.
"""

import contextlib
import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from headrace.deploy.errors import DeployError
from headrace.deploy.local.services.kafka import KafkaNode, KafkaNodeSettings
from headrace.deploy.local.services.kafka_jars import kafka_jars
from headrace.deploy.local.services.ports import KeptPorts
from headrace.deploy.local.services.progress import SetupProgress
from headrace.deploy.local.services.server_process import ServerProcess
from headrace.deploy.local.services.valkey import ValkeyNode, ValkeySettings
from headrace.pserver.redis_backend.address import without_login

_GRACE_S = 6.0
"""From SIGTERM to SIGKILL, so that a pipeline ends within the 20 s that it announces. A Kafka that
is killed checks its logs at the next start."""


class LocalServices:
    """A context manager in which `kafka` and `redis` are addresses of running services.

    A given `kafka` (`host:port`) or `redis` (URL) is used without being started, checked or
    stopped. `jars_directory` has the jars of Kafka; None uses the Maven cache and fetches missing
    jars. `directory` keeps data, logs and ports; None uses a temporary one.
    `__enter__` raises DeployError, with everything stopped again.
    """

    def __init__(
        self,
        *,
        kafka: str | None = None,
        redis: str | None = None,
        jars_directory: Path | None = None,
        directory: Path | None = None,
        steps: SetupProgress | None = None,
    ) -> None:
        self._kafka = kafka
        self._redis = redis
        self._jars_directory = jars_directory
        self._wanted_directory = directory
        self._steps = steps or SetupProgress()
        self._cleanup = contextlib.ExitStack()
        self.kafka_node: KafkaNode | None = None
        self.valkey_node: ValkeyNode | None = None
        self.ports = KeptPorts(directory)
        self.temporary = directory is None
        self.directory: Path = directory or Path()

    @property
    def kafka(self) -> str:
        """`host:port` of Kafka."""
        assert self._kafka is not None
        return self._kafka

    @property
    def redis(self) -> str:
        """URL of Redis or Valkey."""
        assert self._redis is not None
        return self._redis

    @property
    def started(self) -> list[ServerProcess]:
        """The servers that this object started."""
        nodes = self.valkey_node, self.kafka_node
        return [node for node in nodes if node is not None]

    @property
    def remove(self) -> Path | None:
        """The directory to remove if this process dies: the temporary one, or None."""
        return self.directory if self.temporary else None

    def keep(self) -> None:
        """Keep the temporary directory, so that a user can read the logs."""
        self.temporary = False

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as started:
            started.callback(self._remove_directory)
            self.directory = self._made_directory()
            started.enter_context(_claimed(self.directory))
            if self._redis is None:
                self.valkey_node = ValkeyNode(
                    self.directory / "valkey",
                    ValkeySettings(grace_s=_GRACE_S),
                    port=self.ports.take("Valkey"),
                    remove=self.remove,
                )
                started.callback(self.valkey_node.stop)
                self._steps.step("starting Valkey", long=True)
                self.valkey_node.launch()
                self._redis = self.valkey_node.url
            if self._kafka is None:
                jars = kafka_jars(self._jars_directory, self._steps.fetched)
                self.kafka_node = KafkaNode(
                    self.directory / "kafka",
                    jars,
                    KafkaNodeSettings(grace_s=_GRACE_S),
                    port=self.ports.take("Kafka"),
                    remove=self.remove,
                )
                started.callback(self.kafka_node.stop)
                self._steps.step("starting Kafka", long=True)
                self.kafka_node.launch()
                self._kafka = self.kafka_node.bootstrap
            if self.valkey_node is not None:
                # stop it at the same time as Kafka
                started.callback(self.valkey_node.ask_to_stop)
                self.valkey_node.wait_ready()
            if self.kafka_node is not None:
                self.kafka_node.wait_ready()
            self.ports.save()
            for line in self.ports.moved:
                self._steps.step(line)
            shown = without_login(self.redis)
            self._steps.step(f"Kafka at {self.kafka}, Redis or Valkey at {shown}")
            self._cleanup = started.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def _made_directory(self) -> Path:
        if self._wanted_directory is None:
            return Path(tempfile.mkdtemp(prefix="headrace-"))
        try:
            self._wanted_directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DeployError(
                f"--state / HEADRACE_STATE: expected a directory for data, got {error}"
            ) from error
        return self._wanted_directory.resolve()

    def _remove_directory(self) -> None:
        if self.temporary:
            shutil.rmtree(self.directory, ignore_errors=True)


@contextlib.contextmanager
def _claimed(directory: Path) -> Iterator[None]:
    """Lock `directory` for this process: two servers that write the same files corrupt them."""
    with (directory / "in-use").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DeployError(
                f"--state / HEADRACE_STATE: expected a directory for one headrace alone, "
                f"got {directory}, which another one uses"
            ) from None
        yield
