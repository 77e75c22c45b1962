"""The runs of a folder. A run is found by its id, or by the begin of an id that only one has."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from headrace.deploy.errors import DeployError
from headrace.deploy.reports.tracking.run_registry import RunRegistry
from headrace.deploy.reports.tracking.tracked_run import (
    RunKind,
    TrackedRun,
    experiment_run,
)
from headrace.learner.experiments.run_folder import read_history

_HISTORY = "history.ndjson"


def stored_runs(folder: Path) -> list[TrackedRun]:
    """Return the runs of a folder, oldest first. Raises DeployError for an unreadable record."""
    registry = RunRegistry(folder)
    runs = {run_id: registry.read(run_id) for run_id in registry.ids()}
    for run_id, run in runs.items():
        own = Path(run.settings.get("folder", ""))
        if run.kind is RunKind.EXPERIMENT and (own / _HISTORY).is_file():
            runs[run_id] = _with_history(own, run)
    for path in sorted(folder.glob(f"*/{_HISTORY}")):
        runs.setdefault(path.parent.name, _with_history(path.parent, None))
    return sorted(runs.values(), key=lambda run: (run.begun_ms, run.id))


def find_run(wanted: str, runs: Sequence[TrackedRun]) -> TrackedRun:
    """Return the run with this id or begin of an id; an arm after another slash.

    Raises DeployError.
    """
    every = list(_with_arms(runs))
    found = [run for run in every if run.id == wanted]
    # the begin of a run's id is also that of its arms
    found = found or [run for run in runs if run.id.startswith(wanted)]
    found = found or [run for run in every if run.id.startswith(wanted)]
    if not wanted or not found or (len(found) > 1 and found[0].id != wanted):
        known = ", ".join(run.id for run in (found or runs)[:10]) or "no run"
        raise DeployError(
            f"expected one run ({known}), got {wanted!r}: `headrace runs` has them all"
        )
    return found[0]


def _with_history(folder: Path, recorded: TrackedRun | None) -> TrackedRun:
    """Return the run of an experiment's folder, with what its record adds to its history."""
    if recorded is None:
        return experiment_run(folder.name, read_history(folder), folder.name)
    run = experiment_run(recorded.name, read_history(folder), recorded.id)
    return msgspec.structs.replace(
        recorded,
        figures=run.figures,
        settings=recorded.settings | run.settings,
        arms=run.arms,
        decisions=run.decisions,
    )


def _with_arms(runs: Sequence[TrackedRun]) -> Iterator[TrackedRun]:
    for run in runs:
        yield run
        yield from run.arms
