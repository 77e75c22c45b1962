"""Learner processes of one model on the real Kafka and Valkey, by name."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.deploy.local.services.waiting import wait_until
from headrace.learner.loop.marks.topic_marks import offsets_in
from headrace.pserver.errors import Unreachable
from tests.deploy.command import HEADRACE

if TYPE_CHECKING:
    from tests.deploy.learners.learned_model import LearnedModel

BUCKETS = 8
DEADLINE_S = 90.0


class Crew:
    """Learner processes of one model, by name."""

    def __init__(self, model: LearnedModel, folder: Path, push_every: str) -> None:
        self._model, self._folder, self._push_every = model, folder, push_every
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def join(self, name: str) -> None:
        """Start a learner."""
        model = self._model
        command = [
            *HEADRACE, "learner", "run", "--model", str(model.path), "--redis", model.valkey,
            "--kafka", model.kafka.bootstrap, "--instance", name, "--push-every", self._push_every,
        ]  # fmt: skip
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, name: str) -> None:
        """Kill a learner."""
        process = self._processes.pop(name)
        process.kill()
        assert process.wait() == -signal.SIGKILL

    def leave(self, name: str) -> None:
        """Ask a learner to leave, and see it do so in good order."""
        process = self._processes.pop(name)
        process.terminate()
        status = process.wait(DEADLINE_S)
        # one that has not begun yet knows no signals, and leaves all the same
        assert status in (0, -signal.SIGTERM), (self._folder / f"{name}.log").read_text()

    def wait_until_more(self, batches: int) -> None:
        """Wait until all buckets together have learned so many more batches."""
        with self._model.store() as store:

            def learned() -> int:
                answers = store.marks(range(BUCKETS))
                known = [each for each in answers if not isinstance(each, Unreachable)]
                return sum(sum(offsets_in(each.marks).values()) for each in known)

            goal = learned() + batches * BUCKETS
            assert wait_until(lambda: learned() >= goal, DEADLINE_S, self._alive), self._said()

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    def _alive(self) -> bool:
        return all(each.poll() is None for each in self._processes.values())

    def _said(self) -> str:
        return "\n".join(each.read_text()[-3000:] for each in self._folder.glob("*.log"))


@contextlib.contextmanager
def crew(model: LearnedModel, folder: Path, push_every: str) -> Iterator[Crew]:
    crew = Crew(model, folder, push_every)
    model.failures = []  # no learner runs in this process
    try:
        yield crew
    finally:
        crew.close()
