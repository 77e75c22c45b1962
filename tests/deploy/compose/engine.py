"""A Docker daemon of its own, and the Compose file as a project in it."""

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import yaml

from headrace.deploy.local.services.child_process import ChildProcess
from headrace.deploy.local.services.ports import free_port
from headrace.deploy.local.services.waiting import wait_until
from tests.deploy.compose.build import compose_command
from tests.deploy.compose.stand_ins import STAND_INS
from tests.deploy.image.build import PLAIN, ROOT, buildah

FILE = ROOT / "deploy/compose/compose.yaml"
_READY_S = 120.0
_COMMAND_S = 560.0
_LEFT_OUT = ("grafana",)
_ISOLATED = ("--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-masq=false")
"""Containers reach each other, and this machine their ports; nothing else on it changes."""


class Engine:
    """A daemon with the images of the Compose file. Use as a context manager."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # the path of a socket has at most 107 characters
        self._short = tempfile.TemporaryDirectory(prefix="headrace-docker-")
        self._socket = Path(self._short.name) / "docker.sock"
        self._daemon: ChildProcess | None = None

    def __enter__(self) -> Self:
        """Start the daemon, and load the images."""
        try:
            self._start()
            self._load()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._daemon is not None:
            self._daemon.stop()
        self._short.cleanup()

    def docker(self, *arguments: str) -> str:
        """Run a command of Docker; return its output. Raises RuntimeError."""
        return self.run(["docker", *arguments])

    def run(self, command: list[str], **variables: str) -> str:
        """Run a command that uses this daemon; return its output. Raises RuntimeError."""
        environment = {**os.environ, "DOCKER_HOST": f"unix://{self._socket}", **variables}
        done = subprocess.run(
            command,
            env=environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
        )
        if done.returncode:
            words = " ".join(command)
            message = f"expected `{words}` to succeed, got {done.returncode}:\n"
            raise RuntimeError(message + (done.stdout + done.stderr)[-4000:])
        return done.stdout

    def _start(self) -> None:
        run = Path(self._short.name)
        self._daemon = daemon = ChildProcess(
            [
                *("dockerd", f"--host=unix://{self._socket}", f"--pidfile={run / 'pid'}"),
                *(f"--data-root={self._directory / 'data'}", f"--exec-root={run / 'exec'}"),
                *("--exec-opt=native.cgroupdriver=cgroupfs", *_ISOLATED),
            ],
            self._directory / "dockerd.log",
            grace_s=60.0,
        )
        if not wait_until(self._answers, _READY_S, lambda: daemon.alive):
            raise TimeoutError(f"expected a Docker daemon, got:\n{daemon.log_tail()}")

    def _load(self) -> None:
        archive = self._directory / "image.tar"
        for image in (PLAIN, *STAND_INS.values()):
            buildah("push", image, f"docker-archive:{archive}:{image}")
            self.docker("load", "--quiet", "--input", str(archive))
            archive.unlink()

    def _answers(self) -> bool:
        try:
            self.docker("version")
        except RuntimeError:
            return False
        return True


class Project:
    """The Compose file in an engine, on free ports of this machine."""

    def __init__(self, engine: Engine, directory: Path) -> None:
        self._engine = engine
        self.file: dict[str, Any] = yaml.safe_load(FILE.read_text())
        self.services = [each for each in self.file["services"] if each not in _LEFT_OUT]
        self.server_port, self.collector_port = free_port(), free_port()
        self._variables = {
            "HEADRACE_IMAGE": PLAIN,
            "HEADRACE_SERVER_PORT": str(self.server_port),
            "HEADRACE_COLLECTOR_PORT": str(self.collector_port),
        }
        images = {name: {"image": image} for name, image in STAND_INS.items()}
        self._stand_ins = directory / "stand-ins.yaml"
        self._stand_ins.write_text(yaml.safe_dump({"services": images}))

    @property
    def ours(self) -> list[str]:
        """The services that run headrace until they are stopped."""
        return [
            name
            for name in self.services
            if "HEADRACE_IMAGE" in self.file["services"][name]["image"]
            and self.file["services"][name]["restart"] == "unless-stopped"
        ]

    def up(self) -> None:
        """Start all services in their order. Returns when each has been started."""
        self.compose("up", "--detach", "--pull", "never", "--no-build", *self.services)

    def compose(self, *arguments: str) -> str:
        """Run a command of Docker Compose for this project. Raises RuntimeError."""
        command = compose_command()
        assert command is not None
        files = ("--file", str(FILE), "--file", str(self._stand_ins))
        return self._engine.run([*command, *files, *arguments], **self._variables)

    def state(self, service: str) -> dict[str, Any]:
        """Return what Docker says about the container of a service."""
        name = f"{self.file['name']}-{service}-1"
        found: list[dict[str, Any]] = json.loads(self._engine.docker("container", "inspect", name))
        return found[0]

    def kill(self, service: str) -> None:
        """Kill the process of a service, as a crash does, and wait until Docker restarted it."""
        before = self.state(service)
        os.kill(before["State"]["Pid"], signal.SIGKILL)

        def restarted() -> bool:
            now = self.state(service)
            return bool(now["RestartCount"] > before["RestartCount"] and now["State"]["Running"])

        self.wait(restarted, f"a restart of {service}")

    def address(self, service: str) -> str:
        """Return the address of a service in the network of the project."""
        [network] = self.state(service)["NetworkSettings"]["Networks"].values()
        address: str = network["IPAddress"]
        return address

    def wait(self, true: Callable[[], bool], what: str) -> None:
        """Wait for a condition; fails with the states and the last lines of all services."""
        if not wait_until(true, _COMMAND_S):
            states = self.compose("ps", "--all")
            logs = self.compose("logs", "--tail", "20", "--no-color")
            raise AssertionError(f"expected {what} within {_COMMAND_S:g} s, got\n{states}\n{logs}")
