"""The interface between a runner and arms that tasks learn, here or on other machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Sequence

    from headrace.ingest.examples import Examples
    from headrace.learner.experiments.arm import Arm
    from headrace.learner.experiments.executors.checkpoints import FinishedArm
    from headrace.learner.experiments.losses import Settled

    ArmsAtPlace = tuple[Any, list[Arm]]
    """A position of the staged log, and the arms there."""

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


class Task(Protocol[Result_co]):
    """Work that can be repeated: a function of files. It is pickled."""

    def run(self) -> Result_co:
        """Return the result. Complete work is not repeated."""


class Execute(Protocol):
    """Runs a round of tasks; returns their results in the same order."""

    def __call__(self, tasks: Sequence[Task[Result]], /) -> list[Result]:
        """Run the tasks."""


class ArmTasks(Protocol):
    """Arms that tasks learn. The runner calls these methods in the order of its decisions."""

    def prepare(self, places: Sequence[ArmsAtPlace], stop: threading.Event) -> bool:
        """Wait for what the next step needs; False: `stop` was set before."""

    def step(
        self, places: Sequence[ArmsAtPlace], examples: Examples, settled: Sequence[Settled]
    ) -> None:
        """Step the arms at the first place through the next block."""

    def flush(self, place: ArmsAtPlace, settled: Sequence[Settled]) -> None:
        """Take the outcomes that remain at the end of the log."""

    def end(self, ended: FinishedArm, *, at_end: bool) -> None:
        """Take note of an arm that ended; `at_end`: with the log."""

    def clean(self, learning: Iterable[ArmsAtPlace], ended: Iterable[FinishedArm]) -> None:
        """Remove files that no longer are needed; the runner has saved its state."""


def run_task(task: Task[Result]) -> Result:
    """Run one task, in a worker."""
    return task.run()
