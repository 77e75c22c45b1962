"""Derives the agreement of a group of runners from the order of its messages alone.

An order counts if its path is the one agreed so far, an action if no order came between. So the
first proposal for a step wins, and each runner finds the same one. Sums count if they are of the
agreed path, and the first ones for an arm and a step win. An arm that two runners learn for a while
does no harm, even if their processors round differently.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.learner.experiments.live.group.messages import (
    FIRST_PATH,
    Action,
    Order,
    Saved,
    Sums,
)

if TYPE_CHECKING:
    from headrace.learner.experiments.live.group.messages import Message

AT_END = -1
"""Step of the sums at the end of the log."""


class Place(NamedTuple):
    """A step of a run, and the messages behind it."""

    step: int = 0
    path: bytes = FIRST_PATH
    offset: int = 0
    """First message that matters from here on."""
    new_arms: bool = True


class Agreement:
    """The orders, actions and sums behind a place."""

    def __init__(self, run: str, place: Place) -> None:
        self._run = run
        self.step, self.path = place.step, place.path
        """Of the last agreed order."""
        self.orders: dict[int, Order] = {}
        """By step."""
        self.actions: dict[int, list[tuple[Action, int]]] = {}
        """By step: actions with the offset behind each."""
        self.saved: set[int] = set()
        """Arms whose models are saved at the last step with a save."""
        self._paths = {place.step: place.path}
        self._sums: dict[tuple[int, int], list[float]] = {}
        self._taken: dict[int, int] = {}
        """Arm -> last step whose sums were taken."""
        self._from = place.step

    def offer(self, message: Message, offset: int) -> None:
        """Take the next message. `offset`: behind it."""
        if message.run != self._run:
            return
        if isinstance(message, Order):
            if message.path == self.path and message.step == self.step + 1:
                self.orders[message.step] = message
                self.step, self.path = message.step, message.after
                self._paths[self.step] = self.path
        elif isinstance(message, Action):
            if message.path == self.path and message.step == self.step:
                self.actions.setdefault(message.step, []).append((message, offset))
                if message.kind == "save":
                    self.saved = set()
        elif isinstance(message, Saved):
            if message.path == self.path and message.step == self.step:
                self.saved.update(message.arms)
        else:
            self._offer_sums(message)

    def _offer_sums(self, message: Sums) -> None:
        if self._paths.get(message.step) != message.path:
            return
        for arm, losses in message.arms.items():
            if message.at_end:
                self._sums.setdefault((arm, AT_END), losses)
            elif message.step > self._taken.get(arm, self._from):
                self._sums.setdefault((arm, message.step), losses)

    def sums(self, arm: int, step: int) -> list[float] | None:
        """Return the sums of an arm at a step once; None if they are not known yet."""
        found = self._sums.pop((arm, step), None)
        if found is not None and step != AT_END:
            self._taken[arm] = step
        return found

    def forget(self, step: int) -> None:
        """Forget the orders and paths before a step that all have saved."""
        for known in (self.orders, self._paths, self.actions):
            for each in [each for each in known if each < step]:
                del known[each]
