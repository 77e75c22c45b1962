"""Learners that come and go while examples arrive: every show and click counts once.

Real processes on the real Kafka and Valkey. One is killed, one is asked to leave, and others
take over their partitions. Then the counters of the rows are compared with the events.
"""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from headrace.deploy.local.services.waiting import wait_until
from headrace.deploy.reports.observer import copy_rows
from headrace.learner.loop.topic_marks import offsets_in
from headrace.pserver.errors import Unreachable
from tests.deploy.command import HEADRACE
from tests.deploy.learned_model import LearnedModel, counts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

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


def check_counts(model: LearnedModel) -> None:
    with model.store() as store:
        assert counts_of(copy_rows(store).everything().existing(), model.spec) == model.counts


def test_no_example_is_lost_or_counted_twice_when_one_learner_dies_and_one_leaves(
    kafka: str, valkey: str, tmp_path: Path, fresh_name: Callable[[str], str]
) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    model = LearnedModel(kafka, valkey, fresh_name("crew"), tmp_path, seed)
    model.make(BUCKETS)
    with crew(model, tmp_path, "batch") as learners:
        learners.join("a")
        learners.join("b")
        model.produce(900)
        learners.wait_until_more(4)
        learners.kill("a")  # with examples that are not pushed and pushes without an answer
        learners.join("a")  # the same name gets its partitions back at once
        model.produce(900)
        learners.wait_until_more(4)
        learners.leave("b")
        model.produce(300)
        model.wait_learned()
        learners.leave("a")
    check_counts(model)


@pytest.mark.long
@pytest.mark.parametrize("push_every", ["batch", "500", "20ms", ""])
def test_learners_that_join_leave_and_die_in_any_order_count_every_example_once(
    push_every: str, kafka: str, valkey: str, tmp_path: Path, fresh_name: Callable[[str], str]
) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    dice = random.Random(seed)
    model = LearnedModel(kafka, valkey, fresh_name("crowd"), tmp_path, seed)
    model.make(BUCKETS)
    there = {"a", "b"}
    with crew(model, tmp_path, push_every) as learners:
        for name in sorted(there):
            learners.join(name)
        for number in range(6):
            model.produce(dice.randrange(400, 1200))
            learners.wait_until_more(dice.randrange(1, 6))
            name = dice.choice(sorted(there))
            end = dice.choice([learners.kill, learners.leave])
            end(name)
            # under the old name it has the partitions at once; under a new one the group waits
            again = name if end == learners.kill else f"{name}{number}"
            there = there - {name} | {again}
            learners.join(again)
        model.wait_learned()
        for name in sorted(there):
            learners.leave(name)
    check_counts(model)
