"""Runners of a group in one process: a seeded scheduler runs one of them at a time.

A runner gives the turn away whenever it reads messages, asks for its tokens or pauses. The world
then may deliver messages late, change the group without telling a runner, or kill a runner, whose
last messages may be lost or come later.
"""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np

from headrace.learner.experiments.live.group.group_member import GroupMember, GroupTask
from headrace.learner.experiments.live.group.group_ports import (
    TOKENS,
    GroupPorts,
    MemoryLog,
    MemoryMembership,
    MemoryRegistry,
)
from tests.learner.experiments.live_broker import PARTITIONS, Broker, Killed

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.learner.experiments.history import ExperimentProgress, ExperimentResult

MOST_TURNS = 300_000


class SimulatedRunner(threading.Thread):
    """A runner that has the turn now and then."""

    def __init__(self, world: GroupWorld, folder: Path) -> None:
        super().__init__(daemon=True)
        self.world, self.folder = world, folder
        self.turn = threading.Semaphore(0)
        self.killed = self.over = False
        self.failure: BaseException | None = None
        self.result: ExperimentResult | None = None
        self.log = DelayedLog(world, self)
        self.membership = LateMembership(world, self)
        self._idle, self._before = 0, -1

    def run(self) -> None:
        self.turn.acquire()
        try:
            self.result = self._member().run()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - raised by the world
            self.failure = error
        self.over = True
        self.world.turn.release()

    def yield_turn(self) -> None:
        """Let others run."""
        self.world.turn.release()
        self.turn.acquire()
        if self.killed:
            raise Killed

    def _member(self) -> GroupMember:
        world, broker = self.world, self.world.broker
        ports = GroupPorts(self.log, self.membership, world.registry, world.now_s, self.yield_turn)
        task = GroupTask(
            *(broker.experiment, self.folder, world.save_every_s, broker.experiments),
            published=broker.published,
            begins=lambda *_: (0,) * PARTITIONS,
            open_source=lambda begins: closing(broker.source(begins)),
        )
        return GroupMember(task, ports, threading.Event(), self._asked)

    def _asked(self, progress: ExperimentProgress) -> bool:
        """Append to the topic; ask for the end once the stream has ended for a while."""
        more = self.world.broker.append(int(self.world.dice.integers(3)))
        self._idle = self._idle + 1 if progress.steps == self._before and not more else 0
        self._before = progress.steps
        return self._idle > 20


class DelayedLog(MemoryLog):
    """Messages of one runner on their way; they stay in order."""

    def __init__(self, world: GroupWorld, runner: SimulatedRunner) -> None:
        super().__init__(world.messages, runner.yield_turn)
        self.under_way: list[bytes] = []
        self._world, self._runner = world, runner

    def send(self, message: bytes) -> None:
        """Send a message."""
        self.under_way.append(message)

    def deliver(self, count: int) -> None:
        """Append the first messages to the log."""
        self.messages += self.under_way[:count]
        del self.under_way[:count]

    def read(self, timeout_s: float) -> list[tuple[int, bytes]]:
        """Return some of what is there."""
        self._runner.yield_turn()
        self.deliver(int(self._world.dice.integers(4)))
        found = list(enumerate(self.messages))[self._next :]
        some = found[: int(self._world.dice.integers(12))] if timeout_s else found
        self._next += len(some)
        self.at_end = len(some) == len(found)
        return some


class LateMembership(MemoryMembership):
    """Tokens that a runner learns about late."""

    def __init__(self, world: GroupWorld, runner: SimulatedRunner) -> None:
        super().__init__(frozenset())
        self._world, self._runner = world, runner

    def tokens(self) -> frozenset[int]:
        """Return the tokens, as far as they are known here."""
        if self._world.dice.random() < 0.2:
            self.assigned = self._world.tokens_of(self._runner)
        return self.assigned


class GroupWorld:
    """All runners of a group."""

    def __init__(self, broker: Broker, seed: int, save_every_s: float = 60.0) -> None:
        """`save_every_s`: of a clock that counts its readings."""
        self.broker, self.seed, self.save_every_s = broker, seed, save_every_s
        self.dice = np.random.default_rng(seed)
        self.turn = threading.Semaphore(0)
        self.messages: list[bytes] = []
        self.registry = MemoryRegistry()
        self.runners: list[SimulatedRunner] = []
        self._late: list[DelayedLog] = []
        self._clock = 0.0

    def now_s(self) -> float:
        """Return a time that passes."""
        self._clock += 1.0
        return self._clock

    def tokens_of(self, runner: SimulatedRunner) -> frozenset[int]:
        """Return the tokens that the group assigns to a runner."""
        alive = [each for each in self.runners if not each.over]
        if runner not in alive:
            return frozenset()
        place = alive.index(runner)
        return frozenset(token for token in range(TOKENS) if token % len(alive) == place)

    def add(self, folder: Path) -> SimulatedRunner:
        """Start a runner."""
        runner = SimulatedRunner(self, folder)
        self.runners.append(runner)
        runner.start()
        return runner

    def kill(self, runner: SimulatedRunner) -> None:
        """Kill a runner; its last messages are lost, or come later."""
        runner.killed = True
        self._give_turn(runner)
        if self.dice.random() < 0.5:
            self._late.append(runner.log)

    def kill_some(self, folder: Path) -> None:
        """Run, kill a runner and start others, again and again, then run to the end."""
        for _ in range(6):
            if self.run(turns=int(self.dice.integers(20, 250))):
                break
            before = self.broker.published().lines
            alive = [each for each in self.runners if not each.over]
            self.kill(alive[int(self.dice.integers(len(alive)))])
            assert self.broker.published().lines[: len(before)] == before, f"seed {self.seed}"
            for _ in range(int(self.dice.integers(1, 3))):
                self.add(folder)
        self.run()

    def run(self, turns: int = MOST_TURNS) -> bool:
        """Run until all runners ended, or so many turns; return whether they ended."""
        for _ in range(turns):
            alive = [each for each in self.runners if not each.over]
            if not alive:
                return True
            self._give_turn(alive[int(self.dice.integers(len(alive)))])
            if self._late and self.dice.random() < 0.02:
                self._late.pop().deliver(1 << 30)
        assert turns < MOST_TURNS, f"seed {self.seed}: the group does not end"
        return False

    def _give_turn(self, runner: SimulatedRunner) -> None:
        runner.turn.release()
        self.turn.acquire()
        if runner.failure is not None:
            raise runner.failure
