"""Exports an experiment while it runs: once a rung, from the history that its runner writes.

The runner does not wait for the export, and its code has no part in it: a thread reads what was
appended to `history.ndjson`. Scores of batches are held until the next rung or decision, so a
tracker gets few large updates.
"""

from collections.abc import Callable
from pathlib import Path

from headrace.deploy.reports.tracking.tracked_run import TrackedRun, experiment_run
from headrace.learner.errors import LearnerError
from headrace.learner.experiments.run_folder import read_history
from headrace.runtime.background_thread import RepeatingThread

_EVERY_S = 5.0


class HistoryFollower:
    """Reads a history as it grows."""

    def __init__(self, name: str, run_id: str, folder: Path) -> None:
        self._name, self._id, self._folder = name, run_id, folder
        self._size = self._told = 0

    def poll(self) -> TrackedRun | None:
        """Return the experiment up to its newest rung or decision; None without a new one."""
        try:
            size = (self._folder / "history.ndjson").stat().st_size
            if size == self._size:
                return None
            records = read_history(self._folder)
        except (OSError, LearnerError):  # before the runner's first record
            return None
        self._size = size
        while records and records[-1].kind == "scored":
            records.pop()
        if len(records) <= self._told:
            return None
        self._told = len(records)
        return experiment_run(self._name, records, self._id)


def following(follower: HistoryFollower, take: Callable[[TrackedRun], object]) -> RepeatingThread:
    """Return a thread that polls."""

    def follow() -> None:
        if (run := follower.poll()) is not None:
            take(run)

    return RepeatingThread(follow, _EVERY_S, "history")
