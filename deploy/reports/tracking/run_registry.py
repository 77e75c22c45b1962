"""The folder of runs: one folder for each, with its record and its report.

    RUNS/20261123-091500-run-news/run.json      the record
                                  report.json   the report of `headrace run`

A record is written when a run begins and again when it ends, so a run that was killed is listed as
unfinished. Names begin with the time in UTC, so they sort by it. Two runs that begin in the same
second get different names: making a folder is atomic. Folders of `headrace experiment run --to` may
be in the same folder; they have a history of their own. A run is found by its id, or by the begin
of an id that only one has.
"""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from headrace.deploy.errors import DeployError
from headrace.deploy.reports.tracking.tracked_run import RunKind, TrackedRun, experiment_run
from headrace.learner.experiments.run_folder import read_history
from headrace.runtime.undecodable import UNDECODABLE

RECORD, REPORT, _HISTORY = "run.json", "report.json", "history.ndjson"
_decode = msgspec.json.Decoder(TrackedRun).decode


def new_id(kind: str, name: str, begun_ms: int) -> str:
    """Return the id of a run that begins now: its time, kind and name."""
    moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime(begun_ms / 1000))
    return f"{moment}-{kind}-{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}"


class RunRegistry:
    """A folder of runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def claim(self, kind: str, name: str, begun_ms: int) -> str:
        """Make the folder of a new run and return its id. Raises OSError."""
        stem = new_id(kind, name, begun_ms)
        number = 1
        while True:
            run_id = stem if number == 1 else f"{stem}-{number}"
            try:
                (self.folder / run_id).mkdir(parents=True)
            except FileExistsError:
                number += 1
            else:
                return run_id

    def write(self, run: TrackedRun) -> None:
        """Write the record of a run atomically. Raises OSError."""
        self._write(run.id, RECORD, msgspec.json.format(msgspec.json.encode(run)) + b"\n")

    def write_report(self, run_id: str, report: Mapping[str, Any]) -> str:
        """Write the report of a run; return the name of its file. Raises OSError."""
        self._write(run_id, REPORT, msgspec.json.format(msgspec.json.encode(report)) + b"\n")
        return REPORT

    def read(self, run_id: str) -> TrackedRun:
        """Return the record of a run. Raises DeployError."""
        path = self.folder / run_id / RECORD
        try:
            return _decode(path.read_bytes())
        except (OSError, *UNDECODABLE) as error:
            raise DeployError(f"{path}: expected the record of a run, found: {error}") from error

    def ids(self) -> list[str]:
        """Return the ids of all runs, oldest first."""
        return sorted(path.parent.name for path in self.folder.glob(f"*/{RECORD}"))

    def _write(self, run_id: str, name: str, content: bytes) -> None:
        path = self.folder / run_id / name
        unfinished = path.with_name(f"{name}.part")
        unfinished.write_bytes(content)
        unfinished.replace(path)


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
