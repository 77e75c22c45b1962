"""Walks through a Markdown page: runs its commands in order and keeps what each printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headrace.deploy.local.services.ports import free_port
from tests.deploy.command import running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from tests.deploy.command import Running

ROOT = Path(__file__).parents[2]
PORT = re.compile(r"\b(?:8000|8090)\b")
KAFKA = re.compile(r"127\.0\.0\.1:9092")
SERVES = re.compile(r"--serve-after|ingest collect")
"""Commands that run until they are stopped, and what tells that they are ready."""
READY = r"serving until Ctrl-C; ask:\n.*\n|Uvicorn running|Started server process"


class Step(NamedTuple):
    """A block of commands, and the output that the page shows for it."""

    commands: list[str]
    shown: str
    """Empty if the page shows no output."""


def steps(page: str) -> Iterator[Step]:
    """Yield the blocks of commands of a page, in order."""
    found = re.findall(
        r"^```sh\n(.*?)^```\n(?:\n```(?:text|json)\n(.*?)^```)?", page, re.MULTILINE | re.DOTALL
    )
    for commands, shown in found:
        yield Step(commands.splitlines(), shown)


def shape(text: str) -> str:
    """Return a text without what differs between runs: numbers, ids, folders."""
    text = re.sub(r'"impression_id":"[^"]*"', '"impression_id":ID', text)
    text = re.sub(r"/\S+", "PATH", text)
    text = re.sub(r"\d[\d.,]*", "N", text)
    return text.strip()


class Walk:
    """A folder in which commands run, and the processes that they leave running."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ports: dict[str, str] = {}
        self._kafka = ""
        self._running = ExitStack()

    def __enter__(self) -> Walk:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._running.close()

    def run(self, command: str) -> str:
        """Run one line; return what it printed. A server is left running."""
        if command.startswith("cd "):
            self.folder = self.folder / command[3:]
            return ""
        command = PORT.sub(lambda port: self._port(port[0]), command)
        command = KAFKA.sub(self._kafka, command)
        if SERVES.search(command):
            return self._served(command)
        ended = subprocess.run(
            command,
            shell=True,
            cwd=self.folder,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
        return ended.stdout + ended.stderr

    def _served(self, command: str) -> str:
        words = command.split()[1:]
        started: Running = self._running.enter_context(running(*words, folder=self.folder))
        started.wait_for(READY)
        if (kafka := re.search(r"Kafka at ([\d.:]+)", started.output)) is not None:
            self._kafka = kafka.group(1)
        return started.output

    def _port(self, named: str) -> str:
        return self._ports.setdefault(named, str(free_port()))

    def _environment(self) -> dict[str, str]:
        scripts = Path(sys.executable).parent
        path = os.pathsep.join([str(scripts), os.environ.get("PATH", "")])
        kept = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}
        jars = {k: v for k, v in os.environ.items() if k == "HEADRACE_KAFKA_JARS"}
        return {**kept, **jars, "PATH": path, "COLUMNS": "200"}
