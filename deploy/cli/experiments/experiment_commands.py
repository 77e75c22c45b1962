"""`headrace experiment`: many arms on the same examples, compared with a control."""

import json
import sys
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.deploy.cli.runs import run_outputs
from headrace.deploy.errors import BadOption
from headrace.deploy.options import (
    METRICS_HOST,
    METRICS_PORT,
    RUNS_FOLDER,
    TABLE_LAYOUT,
    TRACK_URI,
    KafkaOptions,
    layout_of_tables,
    urls_of_data,
)
from headrace.deploy.process_logs import show_warnings_only
from headrace.deploy.terminal.wrapped_text import columns_of, wrapped
from headrace.learner.experiments.executors.executor_kind import ExecutorKind
from headrace.runtime.counted_nouns import counted
from headrace.runtime.settings import argument, setting
from headrace.runtime.termination import stopped_by_signals

if TYPE_CHECKING:
    from headrace.learner.batch.sources import BatchSource
    from headrace.learner.experiments.experiment_file import Experiment
    from headrace.learner.experiments.history import ArmRecord, ExperimentResult
    from headrace.learner.experiments.published_history import PublishedHistory
    from headrace.learner.experiments.run_folder import RunFolder
    from headrace.learner.experiments.runner import ExperimentRunner
    from headrace.learner.spec.model_spec import ModelSpec

_NOTHING_YET = (
    "no experiments yet: topic experiments does not exist, or is empty. Begin one with `headrace "
    "experiment run FILE --to DIR`"
)
EXIT_STOPPED = 1
"""Exit status of a run that was stopped before the end of its log."""


DATA = setting(
    None,
    "A directory of NDJSON with impressions and clicks, or tables (Parquet, CSV, "
    "NDJSON); * matches several. Repeatable, in the order of time.",
    metavar="DIR|FILES",
)
ARCHIVE_FOLDER = setting(
    None,
    "Instead of --data: the folder that `headrace ingest sink --model` writes for the control.",
    metavar="DIR",
)


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
    """With --executor: number of best arms whose last checkpoint is kept after they end."""
    hold: float = setting(30.0, metavar="SECONDS", least=0.0)
    """Without --data: longest wait for a partition without new examples."""


def run(
    options: ExperimentRunOptions,
    kafka: KafkaOptions,
    data: list[str] | None = DATA,
    layout: str = TABLE_LAYOUT,
    archive: str | None = ARCHIVE_FOLDER,
    metrics_port: int = METRICS_PORT,
    metrics_host: str = METRICS_HOST,
    runs: str = RUNS_FOLDER,
    track: str = TRACK_URI,
) -> None:
    """Run an experiment on a log, or on the control's examples in Kafka.

    If interrupted, run it again: it continues, and makes the same decisions.
    """
    from headrace.deploy.reports.tracking.run_recorder import record_experiment
    from headrace.deploy.reports.tracking.tracked_run import RunState
    from headrace.learner.experiments.experiment_file import load_experiment

    experiment = load_experiment(options.file)
    paths = data or ([archive] if archive is not None else [])
    outputs = run_outputs(runs, track)
    with record_experiment(outputs, experiment, options.file, options.to, paths) as recorder:
        if paths:
            source = source_of_log(experiment.control, data, layout, archive)
            result = _run_over_log(experiment, options, source)
        else:
            result = _run_live(experiment, options, (metrics_port, metrics_host), kafka)
        if result is None:
            recorder.change(state=RunState.STOPPED)
    if result is not None:
        _say(result)
    elif paths:
        click.echo("stopped: run the same command again to continue", err=True)
        raise click.exceptions.Exit(EXIT_STOPPED)


def _run_live(
    experiment: "Experiment",
    options: ExperimentRunOptions,
    metrics: tuple[int, str],
    kafka: KafkaOptions,
) -> "ExperimentResult | None":
    """Run on the topic of the control's examples; return None if stopped."""
    from headrace.learner.experiments.live.live_process import LiveSettings, run_live_experiment

    live = LiveSettings(options.to, options.save_every, options.hold, options.restart, *metrics)
    with stopped_by_signals() as stop:
        return run_live_experiment(live, kafka.settings(), experiment, stop)


def _run_over_log(
    experiment: "Experiment", options: ExperimentRunOptions, source: "BatchSource"
) -> "ExperimentResult | None":
    """Run to the end of the log; return None if stopped before."""
    from headrace.deploy.terminal.progress_bars import StepView
    from headrace.learner.experiments.run_folder import RunFolder
    from headrace.learner.experiments.runner import ExperimentRunner

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
        shown = opened.enter_context(StepView())
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


def _history_of(run: str, kafka: KafkaOptions) -> "tuple[list[ArmRecord], bool]":
    """Return the records of a run, and whether it was asked to stop. Raises BadOption."""
    from headrace.learner.experiments.run_folder import read_history

    if Path(run).is_dir():
        return read_history(Path(run)), False
    histories = _live_histories(kafka)
    if run not in histories:
        known = ", ".join(sorted(histories)) or _NOTHING_YET
        raise BadOption(
            f"expected the folder of a run, or a live experiment of topic experiments ({known}), "
            f"got {run}"
        )
    return histories[run].records, histories[run].stop


def _live_histories(kafka: KafkaOptions) -> "Mapping[str, PublishedHistory]":
    """Return the live experiments by name; before the first one, there is no topic."""
    show_warnings_only()
    from headrace.ingest.errors import MissingTopic
    from headrace.learner.experiments.live.history_topic import read_histories

    try:
        return read_histories(kafka.settings())
    except MissingTopic:
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentShowOptions:
    """Options of `headrace experiment show`."""

    run: str = argument("", metavar="[DIR|NAME]")
    """Folder of a run, as given to --to, or name of a live experiment. A folder with such folders:
    list them. Default: list the live experiments."""
    as_json: bool = setting(False, flag="--json")
    """Print JSON."""
    stop: bool = setting(False)
    """Ask the runner of the live experiment to rank the remaining arms and end."""


def show(
    options: ExperimentShowOptions,
    kafka: KafkaOptions,
) -> None:
    """List runs, or print the arms of one: state, examples, difference to the control, reason.

    The difference is that of the mean log loss, with its confidence sequence. Below 0, the arm is
    better. A state is `learning`, `better` (still learning, and you may promote it), or
    the way in which the arm ended: `stopped` at a rung, `eliminated`, or `ended` with the log.
    """
    inside = sorted(Path(options.run).glob("*/history.ndjson")) if options.run else []
    if not options.run or inside:
        _list(inside, kafka)
        return
    history, _ = _history_of(options.run, kafka)
    if options.stop:
        _ask_to_stop(options.run, kafka)
        return
    if options.as_json:
        import msgspec

        click.echo(json.dumps([msgspec.to_builtins(each) for each in history]))
        return
    from headrace.deploy.cli.experiments.experiment_table import table_of

    for line in table_of(history, columns_of(sys.stdout)):
        click.echo(line)


def _list(histories_of_runs: list[Path], kafka: KafkaOptions) -> None:
    from headrace.learner.experiments.run_folder import read_history

    columns = columns_of(sys.stdout)
    for path in histories_of_runs:
        state = _state_of(path.parent.name, read_history(path.parent))
        click.echo(wrapped(state, columns))
    if histories_of_runs:
        return
    histories = _live_histories(kafka)
    if not histories:
        click.echo(wrapped(_NOTHING_YET, columns))
    for name, found in sorted(histories.items()):
        asked = ", asked to stop" if found.stop else ""
        click.echo(wrapped(f"{_state_of(name, found.records)}{asked}", columns))


def _state_of(name: str, history: "list[ArmRecord]") -> str:
    arms = {record.arm for record in history} - {0}
    state = "done" if any(record.kind == "ended" for record in history) else "unfinished"
    examples = max((record.examples for record in history), default=0)
    return f"{name}: {state}, {counted(len(arms), 'arm')}, {counted(examples, 'example')}"


def _ask_to_stop(name: str, kafka: KafkaOptions) -> None:
    from headrace.ingest.kafka.producer import KafkaWriter
    from headrace.learner.experiments.live.history_topic import request_stop

    if Path(name).is_dir():
        raise BadOption(f"--stop: expected the name of a live experiment, got the folder {name}")
    with closing(KafkaWriter(kafka.settings())) as writer:
        request_stop(writer, name)
    click.echo(f"asked the runner of {name} to stop")


def _say(result: "ExperimentResult") -> None:
    click.echo(
        f"best: {result.best.name}, log loss {result.loss:.5f}, {result.difference:+.5f} to the "
        f"control's {result.control_loss:.5f}"
    )
    for key, value in result.best.settings.items():
        click.echo(f"  {key} = {json.dumps(value)}")
    if result.best.number:
        proven = "proven" if result.promotable else "not proven"
        click.echo(f"better than the control: {proven} by its confidence sequence")
    click.echo(
        f"{counted(result.steps, 'example')} learned by all arms, of a log of {result.examples:,}"
    )
