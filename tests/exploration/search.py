"""Walks breadth first through all states of a model, and keeps how each was reached first."""

import time
from collections import Counter, deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

StateT = TypeVar("StateT", bound="Hashable")


class Model(Protocol[StateT]):
    """A protocol with all of its participants."""

    name: str

    def start(self, faults: int) -> StateT:
        """Return the first state; at most `faults` faults may follow."""

    def steps(self, state: StateT) -> Iterator[tuple[str, StateT]]:
        """Yield what may happen next, and the state after it."""

    def broken(self, state: StateT) -> str:
        """Return the promise that the state breaks; empty if none."""


@dataclass
class Exploration:
    """The result of one walk."""

    model: str
    faults: int
    states: int = 0
    ends: int = 0
    """States after which nothing happens."""
    seconds: float = 0.0
    covered: Counter[str] = field(default_factory=Counter)
    """How often each kind of step was taken: the words of its text before a colon."""
    broken: str = ""
    trace: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Return a report."""
        lines = [
            f"{self.model}, {self.faults} faults: {self.states:,} states, {self.seconds:.1f} s",
            "  " + ", ".join(f"{what} {n:,}" for what, n in sorted(self.covered.items())),
        ]
        if self.broken:
            lines += [f"  BROKEN: {self.broken}", *(f"    {step}" for step in self.trace)]
        return "\n".join(lines)


def explore(model: Model[StateT], faults: int) -> Exploration:
    """Walk through all states, up to the first that breaks a promise; the shortest way to it."""
    found = Exploration(model.name, faults)
    began_s = time.process_time()
    first = model.start(faults)
    before: dict[StateT, tuple[str, StateT] | None] = {first: None}
    waiting = deque([first])
    while waiting:
        state = waiting.popleft()
        if why := model.broken(state):
            found.broken, found.trace = why, _trace(before, state)
            break
        last = True
        for what, after in model.steps(state):
            last = False
            found.covered[what.partition(":")[0]] += 1
            if after not in before:
                before[after] = (what, state)
                waiting.append(after)
        found.ends += last
    found.states, found.seconds = len(before), time.process_time() - began_s
    return found


def _trace(before: dict[StateT, tuple[str, StateT] | None], state: StateT) -> list[str]:
    steps: list[str] = []
    while (how := before[state]) is not None:
        steps.append(how[0])
        state = how[1]
    return steps[::-1]
