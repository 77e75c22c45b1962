"""Walks through a Markdown page: runs its commands in order and keeps what each printed.

    python -m tests.docs.walk docs/tutorial.md      runs the page and writes the outputs into it

A block of `sh` is run line by line. The block of `text` or `json` that follows it shows the output.
Commands that serve are left running until the end of the page. Ports and Kafka's address are
replaced by free ones, so that a page can be walked beside a running headrace.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from headrace.deploy.local.services.ports import free_port
from headrace.deploy.local.services.waiting import wait_until
from tests.deploy.command import running

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
BLOCK = re.compile(
    r"^```sh\n(?P<commands>.*?)^```\n(?:\n```(?:text|json)\n(?P<shown>.*?)^```)?",
    re.MULTILINE | re.DOTALL,
)
PORT = re.compile(r"\b(?:8000|8090)\b")
KAFKA = re.compile(r"(?<=--kafka )[\d.:]+")
SERVES = re.compile(r"--serve-after|ingest collect")
READY = r"serving until Ctrl-C; try:\n.*\n|collecting on"
TIMEOUT_S = 150
ANSWER_S = 30


class Step(NamedTuple):
    """A block of commands, and the output that the page shows for it."""

    commands: list[str]
    shown: str
    """Empty if the page shows no output."""


class Walked(NamedTuple):
    """A step, and what its commands printed."""

    step: Step
    printed: str


def steps(page: str) -> Iterator[Step]:
    """Yield the blocks of commands of a page, in order."""
    yield from map(_step, BLOCK.finditer(page))


def _step(found: re.Match[str]) -> Step:
    return Step(found["commands"].splitlines(), found["shown"] or "")


def shape(text: str) -> str:
    """Return a text without what differs between runs: numbers, ids, folders."""
    text = re.sub(r'"impression_id":"[^"]*"', '"impression_id":ID', text)
    text = re.sub(r"/tmp/\S+|/var/\S+", "PATH", text)
    text = re.sub(r"\d[\d.,]*", "N", text)
    return text.strip()


class Walk:
    """A folder in which commands run, and the processes that they leave running."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._named_as: dict[str, str] = {}
        self.kafka = ""
        """Address of the Kafka that the last `headrace run` started."""
        self._running = ExitStack()
        self._answered: dict[str, list[str]] = {}

    def __enter__(self) -> Walk:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._running.close()

    def walk(self, step: Step) -> Walked:
        """Run the commands of a step.

        A request that the page repeats is repeated until its first score has risen. Any other score
        is not enough: an impression is learned as a negative before its click is.
        """
        request = "\n".join(step.commands)
        printed = [""]

        def answered() -> bool:
            printed[0] = "".join(self._run(each) for each in step.commands)
            before, now = self._answered.get(request), _scores(printed[0])
            return before is None or (bool(now) and float(now[0]) > float(before[0]))

        assert wait_until(answered, ANSWER_S), printed[0]
        if scores := _scores(printed[0]):
            self._answered[request] = scores
        return Walked(step, printed[0])

    def _run(self, command: str) -> str:
        if command.startswith("cd "):
            self.folder = self.folder / command[3:]
            return ""
        command = PORT.sub(lambda port: self._port(port[0]), command)
        command = KAFKA.sub(self.kafka, command)
        printed = self._serve(command) if SERVES.search(command) else self._end(command)
        for port, named in self._named_as.items():
            printed = printed.replace(port, named)
        return printed

    def _end(self, command: str) -> str:
        ended = subprocess.run(
            command,
            shell=True,
            cwd=self.folder,
            env=_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert ended.returncode == 0, f"{command}\n{ended.stdout}"
        return (
            ended.stdout
            if not ended.stdout or ended.stdout.endswith("\n")
            else (ended.stdout + "\n")
        )

    def _serve(self, command: str) -> str:
        started = self._running.enter_context(running(*command.split()[1:], folder=self.folder))
        started.wait_for(READY)
        if (kafka := re.search(r"Kafka at ([\d.:]+)", started.output)) is not None:
            self.kafka = kafka.group(1)
        return started.output

    def _port(self, named: str) -> str:
        for port, name in self._named_as.items():
            if name == named:
                return port
        port = str(free_port())
        self._named_as[port] = named
        return port


def _scores(printed: str) -> list[str]:
    return re.findall(r'"score":([\d.e-]+)', printed)


def _environment() -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("HEADRACE_") or name == "HEADRACE_KAFKA_JARS"
    }
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**kept, "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}


def copy_of_examples(folder: Path) -> Path:
    """Copy the examples, less what earlier runs left there; return `folder`."""
    left = shutil.ignore_patterns("log.csv", "report.json", "__pycache__")
    shutil.copytree(EXAMPLES, folder / "examples", ignore=left)
    return folder


def record(path: Path) -> None:
    """Run a page and write the outputs into it."""
    with tempfile.TemporaryDirectory() as home, Walk(copy_of_examples(Path(home))) as walk:

        def recorded(found: re.Match[str]) -> str:
            printed = walk.walk(_step(found)).printed.strip("\n")
            print(found["commands"], printed, sep="\n")
            if found["shown"] is None:
                return found[0]
            begin, end = (place - found.start() for place in found.span("shown"))
            return f"{found[0][:begin]}{printed}\n{found[0][end:]}"

        page = BLOCK.sub(recorded, path.read_text())
        path.write_text(KAFKA.sub(walk.kafka, page))


if __name__ == "__main__":
    record(Path(sys.argv[1]))
