"""Runs one experiment: over a log in files, in this process or by tasks, or on a topic."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.deploy.cli.options import KafkaOptions, layout_of_tables, urls_of_data
from headrace.learner.experiments.executors.executor_kind import ExecutorKind
from headrace.runtime.settings import argument, setting

if TYPE_CHECKING:
    from headrace.learner.batch.sources import BatchSource
    from headrace.learner.experiments.experiment_file import Experiment
    from headrace.learner.experiments.history import ExperimentResult
    from headrace.learner.experiments.run_folder import RunFolder
    from headrace.learner.experiments.runner import ExperimentRunner
    from headrace.learner.spec.model_spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentRunOptions:
    """Options of `headrace experiment run`."""

    file: Path = argument(metavar="FILE")
    """Experiment file (TOML)."""
    to: Path = setting(metavar="DIR")
    """Folder for the history and saved states."""
    save_every: float = setting(60.0, metavar="SECONDS", least=0.0)
    """Time between two saves of the state."""
    restart: bool = setting(False)
    """Delete the saved state and begin again."""
    executor: ExecutorKind = setting(ExecutorKind.SERIAL)
    """With --data or --archive: where arms learn, in this process (serial) or in parallel. The
    decisions are the same."""
    workers: int = setting(0, least=0)
    """With --executor processes: number of processes. 0: one per core."""
    keep_best: int = setting(1, metavar="ARMS", least=0)
    """With --executor: best arms whose last checkpoint is kept after they ended."""
    hold: float = setting(30.0, metavar="SECONDS", least=0.0)
    """Without --data: longest wait for a partition without new examples."""


def run_live(
    experiment: "Experiment",
    options: ExperimentRunOptions,
    metrics: tuple[int, str],
    kafka: KafkaOptions,
) -> "ExperimentResult | None":
    """Run on the topic of the control's examples; return None if stopped."""
    from headrace.learner.experiments.live.live_process import LiveSettings, run_live_experiment
    from headrace.runtime.termination import stopped_by_signals

    live = LiveSettings(options.to, options.save_every, options.hold, options.restart, *metrics)
    with stopped_by_signals() as stop:
        return run_live_experiment(live, kafka.settings(), experiment, stop)


def run_over_log(
    experiment: "Experiment", options: ExperimentRunOptions, source: "BatchSource"
) -> "ExperimentResult | None":
    """Run to the end of the log; return None if stopped before."""
    from contextlib import ExitStack

    from rich.console import Console

    from headrace.deploy.terminal.progress_bars import StepView
    from headrace.learner.experiments.executors.executor_kind import ExecutorKind
    from headrace.learner.experiments.run_folder import RunFolder
    from headrace.learner.experiments.runner import ExperimentRunner
    from headrace.runtime.termination import stopped_by_signals

    with ExitStack() as opened:
        folder = RunFolder(options.to)
        opened.callback(folder.close)
        if options.restart:
            folder.restart()
        if options.executor is ExecutorKind.SERIAL:
            runner = ExperimentRunner(experiment, source, folder, options.save_every)
        else:
            runner = _runner_of_tasks(experiment, options, source, folder, opened)
        if runner.resumed:
            click.echo("continuing a run that was interrupted or has ended", err=True)
        stop = opened.enter_context(stopped_by_signals())
        shown = opened.enter_context(StepView(Console(stderr=True)))
        return runner.run(stop, shown.experiment(experiment.name))


def _runner_of_tasks(
    experiment: "Experiment",
    options: ExperimentRunOptions,
    source: "BatchSource",
    folder: "RunFolder",
    opened: "ExitStack",
) -> "ExperimentRunner":
    from headrace.learner.experiments.executors.execution import open_executor
    from headrace.learner.experiments.executors.remote_arms import RemoteArms
    from headrace.learner.experiments.executors.staged_log import StagedLog, chunk_sizes
    from headrace.learner.experiments.runner import ExperimentRunner

    work = folder.work_path(experiment.fingerprint, source.identity)
    log = StagedLog(source, work / "log", chunk_sizes(experiment.rungs))
    execute = opened.enter_context(open_executor(options.executor, options.workers))
    fields, best = experiment.control.fields, options.keep_best
    remote = RemoteArms(log, work / "arms", fields, execute, best)
    return ExperimentRunner(experiment, log, folder, options.save_every, remote=remote)


def source_of_log(
    spec: "ModelSpec", data: list[str] | None, layout: str, archive: str | None
) -> "BatchSource":
    """Return the examples of a log or an archive. Raises BadOption, SpecError, UnreadableData."""
    from headrace.learner.batch.archive_source import ArchiveSource
    from headrace.learner.batch.event_source import EventLogSource
    from headrace.learner.batch.table_source import TableSource

    paths = urls_of_data(data, archive)
    if archive is not None:
        return ArchiveSource(archive, spec)
    if layout in ("", "auto") and all(Path(path).is_dir() for path in paths):
        return EventLogSource([Path(path) for path in paths], spec)
    return TableSource(paths, layout_of_tables(layout, paths), spec)
