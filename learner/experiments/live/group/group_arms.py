"""Steps the arms of one runner in a group, and takes the sums of the others.

The leader takes the next batch as a runner that is alone would, proposes it, and goes on at once.
The others follow the agreed order. A runner waits only before a decision: until the sums of all
arms are there, and the agreed order is its own one. If another order was agreed, it begins again.
"""

from __future__ import annotations

import pickle
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headrace.ingest.examples import Kind
from headrace.learner.errors import LearnerError
from headrace.learner.experiments.arm import FieldSelection
from headrace.learner.experiments.executors import write_durably
from headrace.learner.experiments.experiment_file import rung_examples
from headrace.learner.experiments.live.group.agreement import AT_END, Agreement, Place
from headrace.learner.experiments.live.group.group_ports import TOKENS
from headrace.learner.experiments.live.group.messages import (
    Action,
    Order,
    Saved,
    Sums,
    decoded_message,
    encoded_message,
)
from headrace.learner.experiments.live.topic_source import ANY
from headrace.learner.experiments.losses import cells_of, loss_sums
from headrace.learner.local import InMemoryModel

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path
    from typing import Literal

    import numpy.typing as npt

    from headrace.ingest.examples import Examples
    from headrace.learner.experiments.arm import Arm
    from headrace.learner.experiments.experiment_file import Experiment
    from headrace.learner.experiments.live.group.group_ports import GroupPorts
    from headrace.learner.experiments.live.group.messages import Message
    from headrace.learner.experiments.losses import Settled

_WAIT_S = 0.2
"""Waiting for a message; as long until a stop or a change of the group is noticed."""


class Reassigned(Exception):
    """The group changed, or agreed on another order: begin again with the saved state."""


class Stopped(Exception):
    """The process was asked to end."""


class UnsharedFolder(LearnerError):
    """The folder of a runner is not the folder of its group."""


class _OwnArm:
    """The model of an arm, and its scores that wait for outcomes."""

    def __init__(self, select: FieldSelection, model: InMemoryModel) -> None:
        self._select, self.model = select, model
        self.scores: deque[npt.NDArray[np.float64]] = deque()

    def step(self, examples: Examples, settled: Sequence[Settled]) -> list[float]:
        """Learn a block; return the sums of the blocks that are settled."""
        scores = self.model.learn(self._select(examples))
        self.scores.append(scores[examples.kinds != Kind.CLICKED])
        return self.settle(settled)

    def settle(self, settled: Sequence[Settled]) -> list[float]:
        """Return the sums of the oldest blocks."""
        sums: list[float] = []
        for outcomes in settled:
            sums += loss_sums(outcomes, self.scores.popleft()).tolist()
        return sums


class _Expected(NamedTuple):
    """Sums of an arm that are not known yet."""

    step: int
    settled: Sequence[Settled]


class GroupArms:
    """The arms of a group, as one runner sees them."""

    def __init__(
        self,
        ports: GroupPorts,
        run: str,
        tokens: frozenset[int],
        experiment: Experiment,
        models: Path,
        stop: threading.Event,
    ) -> None:
        """`run`: its id. models: folder that all share."""
        self._ports, self._run, self._tokens = ports, run, tokens
        self._given, self._rungs = experiment.control.fields, experiment.rungs
        self._models, self._stop = models, stop
        self.leads = 0 in tokens
        """Whether this runner proposes orders and actions."""
        self.whole: Callable[[], bool] = lambda: True
        """Of the leader: whether the log still has its first examples."""
        self.stopping = False
        """Whether the log ends here."""
        self._expected: dict[int, tuple[Arm, deque[_Expected]]] = {}
        self._proposed: dict[int, Order] = {}
        self._own: dict[int, _OwnArm] = {}
        self._acted = 0
        self._caught_up = False

    def begin_at(self, place: Place) -> None:
        """Begin with the state that was saved at a place. Raises Reassigned, Stopped."""
        self.place = self._saved_at = place
        self._agreement = Agreement(self._run, place)
        self._ports.log.start(place.offset)
        if place.step == 0:
            self.place = place._replace(new_arms=self._first_new_arms())

    def _first_new_arms(self) -> bool:
        """Return what was agreed about the first arms; the leader proposes it."""
        while True:
            for action, _ in self._agreement.actions.get(0, []):
                if action.kind == "begin":
                    return action.new_arms
            if self.leads and self._caught_up:
                begin = Action(self._run, self.place.path, 0, "begin", self.whole())
                self._send(begin)
            self.wait()

    # --------------------------------------------------------------------- the order of batches

    def next(self) -> int | None:
        """Return the partition of the next batch, as agreed; of the leader: `ANY`."""
        deadline_s = self._ports.now_s() + _WAIT_S
        timeout_s = 0.0
        while True:
            self._read(timeout_s)
            if self._unhandled():
                return None
            order = self._agreement.orders.get(self.place.step + 1)
            if order is not None:
                return order.partition
            if self.leads and self._caught_up:
                return ANY
            if self._ports.now_s() >= deadline_s:
                return None
            timeout_s = _WAIT_S

    def took(self, partition: int) -> None:
        """Go on to the next step. The leader proposes it."""
        step, path, _, _ = self.place
        order = self._agreement.orders.get(step + 1)
        if order is None:
            order = Order(self._run, path, step + 1, partition, self.whole())
            self._proposed[order.step] = order
            self._send(order)
        self.place = Place(order.step, order.after, 0, order.new_arms)
        self._acted = 0

    # --------------------------------------------------------------------------------- the arms

    def step(
        self,
        places: Sequence[tuple[Any, list[Arm]]],
        examples: Examples,
        settled: Sequence[Settled],
    ) -> None:
        """Step the arms at the first place: learn those of this runner, and expect all sums.

        If a decision follows, wait for the sums.
        """
        sums, arms, decides = {}, places[0][1], False
        for arm in arms:
            before, closed = arm.examples, arm.losses.closed
            number = arm.plan.number
            if self._owns(number):
                sums[number] = self._own_arm(arm).step(examples, settled)
            arm.examples += len(examples)
            self._expect(arm, self.place.step, settled)
            decides = decides or arm.losses.closed > closed or self._passes_rung(before, arm)
        if sums and settled:
            self._send(Sums(self._run, self.place.path, self.place.step, sums))
        if decides:
            self.gather()

    def _passes_rung(self, before: int, arm: Arm) -> bool:
        rung = 0
        while (examples := rung_examples(self._rungs, rung)) <= before:
            rung += 1
        return examples <= arm.examples

    def flush(self, place: tuple[Any, list[Arm]], settled: Sequence[Settled]) -> None:
        """Take the outcomes that remain at the end of the log."""
        arms = place[1]
        sums = {
            arm.plan.number: self._own_arm(arm).settle(settled)
            for arm in arms
            if self._owns(arm.plan.number)
        }
        for arm in arms:
            self._expect(arm, AT_END, settled)
        if sums and settled:
            self._send(Sums(self._run, self.place.path, self.place.step, sums, at_end=True))
        self.gather()

    def gather(self) -> None:
        """Wait until the sums of all arms are there."""
        self._await_own_order()
        for arm, expected in self._expected.values():
            for step, settled in expected:
                while (found := self._agreement.sums(arm.plan.number, step)) is None:
                    self.wait()
                sums = np.array(found)
                for outcomes in settled:
                    many = int(cells_of(outcomes).max(initial=-1)) + 1
                    arm.losses.add_losses(outcomes, sums[:many])
                    arm.pieces.add(outcomes, sums[:many])
                    sums = sums[many:]
        self._expected.clear()

    def prepare(self, places: Sequence[tuple[Any, list[Arm]]], stop: threading.Event) -> bool:
        """Steps wait by themselves."""
        del places, stop
        return True

    def end(self, ended: object, *, at_end: bool) -> None:
        """Arms end at saves."""

    def clean(self, learning: Iterable[tuple[Any, list[Arm]]], ended: Iterable[object]) -> None:
        """`save` removes what is not needed."""

    def _owns(self, number: int) -> bool:
        return number % TOKENS in self._tokens

    def _own_arm(self, arm: Arm) -> _OwnArm:
        number = arm.plan.number
        if number not in self._own:
            select = FieldSelection(self._given, arm.plan.spec.fields)
            if arm.examples:
                path = self._path_of(self._saved_at.step, number)
                try:
                    model, scores = pickle.loads(path.read_bytes())  # noqa: S301 - written below
                except FileNotFoundError as error:
                    # the leader saved a newer state since this runner read its own
                    self._ports.pause()
                    raise Reassigned from error
                self._own[number] = _OwnArm(select, model)
                self._own[number].scores = scores
            else:
                self._own[number] = _OwnArm(select, InMemoryModel(arm.plan.spec))
        return self._own[number]

    def _expect(self, arm: Arm, step: int, settled: Sequence[Settled]) -> None:
        if settled:
            for outcomes in settled:
                arm.losses.expect(outcomes)
            _, expected = self._expected.setdefault(arm.plan.number, (arm, deque()))
            expected.append(_Expected(step, settled))

    # ------------------------------------------------------------------------------ the messages

    def wait(self) -> None:
        """Wait for messages. Raises Reassigned, Stopped."""
        self.check()
        if self._stop.is_set():
            raise Stopped
        self._ports.alive()
        self._read(_WAIT_S)

    def check(self) -> None:
        """Raise Reassigned if the group changed."""
        if self._ports.membership.tokens() != self._tokens:
            raise Reassigned

    def _read(self, timeout_s: float) -> None:
        log = self._ports.log
        for offset, value in log.read(timeout_s):
            message = decoded_message(value)
            if message is not None:
                self._agreement.offer(message, offset + 1)
        self._caught_up = self._caught_up or log.at_end
        for step in [step for step in self._proposed if step <= self._agreement.step]:
            if self._agreement.orders[step] != self._proposed.pop(step):
                raise Reassigned

    def _await_own_order(self) -> None:
        while self._agreement.step < self.place.step:
            self.wait()

    def _send(self, message: Message) -> None:
        self._ports.log.send(encoded_message(message))

    # ------------------------------------------------------------------------------- the actions

    def _unhandled(self) -> list[tuple[Action, int]]:
        if self._agreement.step < self.place.step:
            return []
        return self._agreement.actions.get(self.place.step, [])[self._acted :]

    def act(self, learning: Callable[[], list[Arm]], commit: Callable[[Place], None]) -> None:
        """Do what was agreed about the time after this step. commit: the leader saves the state."""
        self.check()
        self._read(0.0)
        for action, offset in self._unhandled():
            self._acted += 1
            if action.kind == "save":
                self._save(learning(), self.place._replace(offset=offset), commit)
            elif action.kind == "stop":
                self.stopping = True

    @property
    def may_propose(self) -> bool:
        """Whether this runner leads, and no order beyond this step is known."""
        return self.leads and self._caught_up and self._agreement.step <= self.place.step

    def propose(self, kind: Literal["save", "stop", "done"]) -> None:
        """Propose an action after this step, and wait until it is agreed. Raises Reassigned."""
        self._await_own_order()
        self._send(Action(self._run, self.place.path, self.place.step, kind))
        while all(action.kind != kind for action, _ in self._unhandled()):
            if self._agreement.step > self.place.step:
                raise Reassigned
            self.wait()

    def await_done(self) -> None:
        """Wait until the leader has saved the result."""
        while all(action.kind != "done" for action, _ in self._unhandled()):
            self.wait()

    def _save(self, learning: list[Arm], place: Place, commit: Callable[[Place], None]) -> None:
        self.gather()
        numbers = {arm.plan.number for arm in learning}
        own = sorted(number for number in numbers if self._owns(number))
        self._own = {number: arm for number, arm in self._own.items() if number in numbers}
        for arm in learning:
            if arm.plan.number in own:
                held = self._own_arm(arm)
                path = self._path_of(place.step, arm.plan.number)
                path.parent.mkdir(parents=True, exist_ok=True)
                write_durably(path, [(held.model, held.scores)])
        self._send(Saved(self._run, place.path, place.step, own))
        if self.leads:
            while not numbers <= self._agreement.saved:
                self.wait()
            commit(place)
        self._saved_at = place
        self._agreement.forget(place.step)

    def _path_of(self, step: int, number: int) -> Path:
        return self._models / f"step-{step:010}" / f"arm-{number:05}.pickle"
