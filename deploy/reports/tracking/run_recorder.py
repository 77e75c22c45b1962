"""Records a run while its command works.

    with record_run(outputs, RunKind.RUN, spec.name, spec_path, data=paths) as recorder:
        ...
        recorder.report(report)

A record that cannot be written costs one warning, and the run goes on: a full disk is no reason to
lose an hour of replay.
"""

import hashlib
import logging
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from headrace.deploy.reports.tracking.mlflow_target import MlflowTarget
from headrace.deploy.reports.tracking.run_registry import RunRegistry, new_id
from headrace.deploy.reports.tracking.tracked_run import (
    RunKind,
    RunPoint,
    RunState,
    TrackedRun,
    defined,
    experiment_run,
    report_figures,
    report_points,
)
from headrace.learner.errors import LearnerError
from headrace.learner.experiments.experiment_file import Experiment
from headrace.learner.experiments.run_folder import read_history
from headrace.runtime.clock import wall_ms

log = logging.getLogger(__name__)

_GIT_S = 5.0


class RunOutputs(NamedTuple):
    """The places that records go to."""

    registry: RunRegistry | None = None
    """None: no folder."""
    tracker: MlflowTarget | None = None
    """Gets a copy of the whole run when it ends. None: no other tracker."""


class RunRecorder:
    """The record of one run. Without outputs, nothing is written."""

    def __init__(self, outputs: RunOutputs, run: TrackedRun) -> None:
        self._registry, self._tracker = outputs
        self.run = run
        self._points: list[RunPoint] = []
        if self._registry is not None:
            self._guarded(self._begin)
        if not self.run.id:
            self.change(id=new_id(run.kind, run.name, run.begun_ms))

    def report(self, report: Mapping[str, Any]) -> None:
        """Take the figures and windows of a report, keep it beside the record, and write both."""
        self.change(
            state=RunState.DONE,
            seconds=report["seconds"],
            figures=report_figures(report),
            points=report_points(report),
        )
        registry = self._registry
        if registry is not None:
            self._guarded(lambda: self.change(report=registry.write_report(self.run.id, report)))
            self._guarded(lambda: registry.write(self.run))

    def figures(self, figures: Mapping[str, float | None]) -> None:
        """Set the figures at the end. Undefined ones are left out."""
        self.change(figures=defined(figures))

    def point(self, event_ms: int, figures: Mapping[str, float | None]) -> None:
        """Add figures at a moment of event time. A moment without a defined figure is left out."""
        known = defined(figures)
        if known:
            self._points.append(RunPoint(event_ms, known))

    def change(self, **fields: object) -> None:
        """Change fields of the record; it is written at the end."""
        self.run = msgspec.structs.replace(self.run, **fields)

    def end(self, seconds: float) -> None:
        """Write and export the record. `seconds`: if no report said how long the run took."""
        if self._points:
            self.change(points=tuple(self._points))
        if self.run.seconds is None:
            self.change(seconds=round(seconds, 3))
        registry = self._registry
        if registry is not None:
            self._guarded(lambda: registry.write(self.run))
        if self._tracker is not None:
            folder = Path() if registry is None else registry.folder / self.run.id
            self._tracker.export(self.run, folder)

    def _begin(self) -> None:
        assert self._registry is not None
        if self.run.id:
            (self._registry.folder / self.run.id).mkdir(parents=True, exist_ok=True)
        else:
            self.change(id=self._registry.claim(self.run.kind, self.run.name, self.run.begun_ms))
        self._registry.write(self.run)

    def _guarded(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            log.warning("this run is not recorded: %s; --runs names another folder", error)
            self._registry = None


@contextmanager
def record_run(
    outputs: RunOutputs,
    kind: RunKind,
    name: str,
    spec: Path,
    *,
    run_id: str = "",
    data: Sequence[object] = (),
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Iterator[RunRecorder]:
    """Record a run. Its state is `failed` after an exception, else `done` unless it was changed.

    run_id: name of its folder in the registry. By default a new folder with the time in its name.
    """
    began_s = time.monotonic()
    run = TrackedRun(
        id=run_id,
        kind=kind,
        name=name,
        state=RunState.UNFINISHED,
        begun_ms=wall_ms(),
        version=version("headrace"),
        commit=commit_of(spec.parent) if any(outputs) else "",
        seed=seed,
        spec=spec.read_text("utf-8"),
        data=tuple(map(str, data)),
        settings=dict(settings or {}),
    )
    recorder = RunRecorder(outputs, run)
    try:
        yield recorder
    except BaseException as error:
        recorder.change(state=RunState.FAILED, reason=f"{type(error).__name__}: {error}")
        raise
    else:
        if recorder.run.state is RunState.UNFINISHED:
            recorder.change(state=RunState.DONE)
    finally:
        recorder.end(time.monotonic() - began_s)


@contextmanager
def record_experiment(
    outputs: RunOutputs,
    experiment: Experiment,
    file: Path,
    folder: Path,
    data: Sequence[str],
) -> Iterator[RunRecorder]:
    """Record an experiment, with its arms from the history in `folder`.

    The id depends on the folder alone, so a killed experiment that goes on is one run.
    """
    place = str(folder.absolute())
    digest = hashlib.blake2b(place.encode(), digest_size=3).hexdigest()
    run_id = f"experiment-{experiment.name}-{digest}"
    control, seed = experiment.control.name, experiment.seed
    topics = list(data) or [f"topic examples.{control}"]
    settings = {"control": control, "folder": place}
    kind, name = RunKind.EXPERIMENT, experiment.name
    with record_run(
        *(outputs, kind, name, file), run_id=run_id, data=topics, seed=seed, settings=settings
    ) as recorder:
        try:
            yield recorder
        finally:
            with suppress(LearnerError):  # a folder in use, or of another experiment
                found = experiment_run(name, read_history(folder), run_id)
                recorder.change(figures=found.figures, arms=found.arms, decisions=found.decisions)


def commit_of(folder: Path) -> str:
    """Return the commit of the repository that has a folder; empty without git or repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        found = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_GIT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""
