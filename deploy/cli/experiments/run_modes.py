"""Runs one experiment: over a log in files, in this process or by tasks, or on a topic."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

from headrace.deploy.cli.options import layout_of_tables, urls_of_data

if TYPE_CHECKING:
    from contextlib import ExitStack

    from headrace.learner.batch import BatchSource
    from headrace.learner.experiments import (
        Experiment,
        ExperimentResult,
        ExperimentRunner,
        RunFolder,
    )
    from headrace.learner.experiments.executors import ExecutorKind
    from headrace.learner.spec import ModelSpec


class LiveOptions(NamedTuple):
    """Options of a live runner, in the order of `LiveSettings`."""

    folder: Path
    save_every_s: float
    hold_s: float
    restart: bool
    metrics_port: int
    metrics_host: str


def run_live(
    experiment: "Experiment", options: LiveOptions, kafka: str, kafka_client: list[str] | None
) -> "ExperimentResult | None":
    """Run on the topic of the control's examples; return None if stopped."""
    from headrace.deploy.connections import kafka_settings
    from headrace.deploy.termination import stopped_by_signals
    from headrace.learner.experiments.live import LiveSettings, run_live_experiment

    settings = kafka_settings(kafka, kafka_client)
    with stopped_by_signals() as stop:
        return run_live_experiment(LiveSettings(*options), settings, experiment, stop)


class LogOptions(NamedTuple):
    """Options of a run over a log."""

    folder: Path
    save_every_s: float
    restart: bool
    executor: "ExecutorKind"
    workers: int
    keep_best: int


def run_over_log(
    experiment: "Experiment", options: LogOptions, source: "BatchSource"
) -> "ExperimentResult | None":
    """Run to the end of the log; return None if stopped before."""
    from contextlib import ExitStack

    from rich.console import Console

    from headrace.deploy.terminal import StepView
    from headrace.deploy.termination import stopped_by_signals
    from headrace.learner.experiments import ExperimentRunner, RunFolder
    from headrace.learner.experiments.executors import ExecutorKind

    with ExitStack() as opened:
        folder = RunFolder(options.folder)
        opened.callback(folder.close)
        if options.restart:
            folder.restart()
        if options.executor is ExecutorKind.SERIAL:
            runner = ExperimentRunner(experiment, source, folder, options.save_every_s)
        else:
            runner = _runner_of_tasks(experiment, options, source, folder, opened)
        if runner.resumed:
            typer.echo("continuing a run that was interrupted or has ended", err=True)
        stop = opened.enter_context(stopped_by_signals())
        shown = opened.enter_context(StepView(Console(stderr=True)))
        return runner.run(stop, shown.experiment(experiment.name))


def _runner_of_tasks(
    experiment: "Experiment",
    options: LogOptions,
    source: "BatchSource",
    folder: "RunFolder",
    opened: "ExitStack",
) -> "ExperimentRunner":
    from headrace.learner.experiments import ExperimentRunner
    from headrace.learner.experiments.executors import (
        RemoteArms,
        StagedLog,
        chunk_sizes,
        open_executor,
    )

    work = folder.work_path(experiment.fingerprint, source.identity)
    log = StagedLog(source, work / "log", chunk_sizes(experiment.rungs))
    execute = opened.enter_context(open_executor(options.executor, options.workers))
    fields, best = experiment.control.fields, options.keep_best
    remote = RemoteArms(log, work / "arms", fields, execute, best)
    return ExperimentRunner(experiment, log, folder, options.save_every_s, remote=remote)


def source_of_log(
    spec: "ModelSpec", data: list[str] | None, layout: str, archive: str | None
) -> "BatchSource":
    """Return the examples of a log or an archive. Raises BadOption, SpecError, UnreadableData."""
    from headrace.learner.batch import ArchiveSource, EventLogSource, TableSource

    paths = urls_of_data(data, archive)
    if archive is not None:
        return ArchiveSource(archive, spec)
    if layout in ("", "auto") and all(Path(path).is_dir() for path in paths):
        return EventLogSource([Path(path) for path in paths], spec)
    return TableSource(paths, layout_of_tables(layout, paths), spec)
