"""`headrace experiment`: many arms on the same examples, compared with a control."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.counted_nouns import counted
from headrace.deploy.cli.experiments.experiment_promotion import promote, promotion, rollback
from headrace.deploy.cli.experiments.run_modes import (
    LiveOptions,
    LogOptions,
    run_live,
    run_over_log,
    source_of_log,
)
from headrace.deploy.cli.options import (
    KAFKA,
    LOOPBACK,
    KafkaAddress,
    KafkaClient,
    MetricsHost,
    MetricsPort,
    RunsFolder,
    TableLayout,
    TrackUri,
)
from headrace.deploy.cli.runs import run_outputs
from headrace.deploy.errors import BadOption
from headrace.deploy.process_logs import show_warnings_only
from headrace.deploy.terminal import columns_of, wrapped
from headrace.learner.experiments.executors import ExecutorKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.deploy.reports.tracking import TrackedRun
    from headrace.learner.experiments import ArmRecord, ExperimentResult
    from headrace.learner.experiments.live import PublishedHistory

_NOTHING_YET = (
    "no experiments yet: topic experiments does not exist, or is empty. Begin one with `headrace "
    "experiment run FILE --to DIR`"
)
EXIT_STOPPED = 1
"""Exit status of a run that was stopped before the end of its log."""

app = typer.Typer(
    help="Compare many arms with a control, on the same examples, and promote one.",
    no_args_is_help=True,
)
app.command()(promote)
app.command()(rollback)
app.command()(promotion)

ExperimentFile = Annotated[Path, typer.Argument(metavar="FILE", help="Experiment file (TOML).")]
RunName = Annotated[
    str,
    typer.Argument(
        metavar="DIR|NAME", help="Folder of a run, as given to --to, or name of a live experiment."
    ),
]
RunsPath = Annotated[
    Path | None,
    typer.Argument(
        metavar="DIR", help="Folder with the folders of runs. Default: the live experiments."
    ),
]
LiveName = Annotated[str, typer.Argument(metavar="NAME", help="Name of a live experiment.")]
Page = Annotated[
    Path | None,
    typer.Option("--page", metavar="FILE", help="Write an HTML page, too.", show_default=False),
]
Data = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        metavar="DIR|FILES",
        help="A directory of NDJSON with impressions and clicks, or tables (Parquet, CSV, "
        "NDJSON); * matches several. Repeatable, in the order of time.",
        show_default=False,
    ),
]
ArchiveFolder = Annotated[
    str | None,
    typer.Option(
        "--archive",
        metavar="DIR",
        help="Instead of --data: the folder that `headrace ingest sink --model` writes for the "
        "control.",
        show_default=False,
    ),
]
To = Annotated[
    Path, typer.Option("--to", metavar="DIR", help="Folder for the history and saved states.")
]
SaveEvery = Annotated[
    float,
    typer.Option(
        "--save-every", min=0.0, metavar="SECONDS", help="Time between two saves of the state."
    ),
]
Hold = Annotated[
    float,
    typer.Option(
        "--hold",
        min=0.0,
        metavar="SECONDS",
        help="Without --data: longest wait for a partition without new examples.",
    ),
]
Restart = Annotated[bool, typer.Option("--restart", help="Delete the saved state and begin again.")]
Executor = Annotated[
    ExecutorKind,
    typer.Option(
        "--executor",
        help="With --data or --archive: where arms learn, in this process (serial) or in "
        "parallel. The decisions are the same.",
    ),
]
Workers = Annotated[
    int,
    typer.Option(
        "--workers",
        min=0,
        help="With --executor processes: number of processes. 0: one per core.",
    ),
]
KeepBest = Annotated[
    int,
    typer.Option(
        "--keep-best",
        min=0,
        metavar="ARMS",
        help="With --executor: best arms whose last checkpoint is kept after they ended.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("run")
def run(
    file: ExperimentFile,
    to: To,
    data: Data = None,
    layout: TableLayout = "",
    archive: ArchiveFolder = None,
    save_every: SaveEvery = 60.0,
    restart: Restart = False,
    executor: Executor = ExecutorKind.SERIAL,
    workers: Workers = 0,
    keep_best: KeepBest = 1,
    kafka: KafkaAddress = KAFKA,
    kafka_client: KafkaClient = None,
    hold: Hold = 30.0,
    metrics_port: MetricsPort = 0,
    metrics_host: MetricsHost = LOOPBACK,
    runs: RunsFolder = "",
    track: TrackUri = "",
) -> None:
    """Run an experiment on a log, or on the control's examples in Kafka.

    If interrupted, run it again: it continues, and makes the same decisions.
    """
    from headrace.deploy.reports.tracking import RunState, record_experiment
    from headrace.learner.experiments import load_experiment

    experiment = load_experiment(file)
    paths = data or ([archive] if archive is not None else [])
    with (
        run_outputs(runs, track) as outputs,
        record_experiment(outputs, experiment, file, to, paths) as recorder,
    ):
        if paths:
            source = source_of_log(experiment.control, data, layout, archive)
            files = LogOptions(to, save_every, restart, executor, workers, keep_best)
            result = run_over_log(experiment, files, source)
        else:
            settings = LiveOptions(to, save_every, hold, restart, metrics_port, metrics_host)
            result = run_live(experiment, settings, kafka, kafka_client)
        if result is None:
            recorder.change(state=RunState.STOPPED)
    if result is not None:
        _say(result)
    elif paths:
        typer.echo("stopped: run the same command again to continue", err=True)
        raise typer.Exit(EXIT_STOPPED)


def _history_of(
    run: str, kafka: str, kafka_client: list[str] | None
) -> "tuple[list[ArmRecord], bool]":
    """Return the records of a run, and whether it was asked to stop. Raises BadOption."""
    from headrace.learner.experiments import read_history

    if Path(run).is_dir():
        return read_history(Path(run)), False
    histories = _live_histories(kafka, kafka_client)
    if run not in histories:
        known = ", ".join(sorted(histories)) or _NOTHING_YET
        raise BadOption(
            f"expected the folder of a run, or a live experiment of topic experiments ({known}), "
            f"got {run}"
        )
    return histories[run].records, histories[run].stop


def _live_histories(kafka: str, kafka_client: list[str] | None) -> "Mapping[str, PublishedHistory]":
    """Return the live experiments by name; before the first one, there is no topic."""
    show_warnings_only()
    from headrace.deploy.connections import kafka_settings
    from headrace.ingest import MissingTopic
    from headrace.learner.experiments.live import read_histories

    try:
        return read_histories(kafka_settings(kafka, kafka_client))
    except MissingTopic:
        return {}


@app.command("show")
def show(
    run: RunName,
    as_json: AsJson = False,
    page: Page = None,
    kafka: KafkaAddress = KAFKA,
    kafka_client: KafkaClient = None,
) -> None:
    """Print the arms of a run: state, examples, difference to the control, and the reason.

    The difference is that of the mean log loss, with its confidence sequence. Below 0, the arm is
    better. A state is `learning`, `better` (still learning, and you may promote it), or
    the way in which the arm ended: `stopped` at a rung, `eliminated`, or `ended` with the log.
    """
    history, _ = _history_of(run, kafka, kafka_client)
    if page is not None:
        from headrace.deploy.reports import render_experiment

        promotions = [] if Path(run).is_dir() else _promotions_of(history, kafka, kafka_client)
        page.write_text(render_experiment(Path(run).name, history, promotions), "utf-8")
        typer.echo(f"page: {page}", err=True)
    if as_json:
        import msgspec

        typer.echo(json.dumps([msgspec.to_builtins(each) for each in history]))
        return
    from headrace.deploy.cli.experiments.experiment_table import table_of

    for line in table_of(history, columns_of(sys.stdout)):
        typer.echo(line)


def _promotions_of(
    history: "list[ArmRecord]", kafka: str, kafka_client: list[str] | None
) -> "list[TrackedRun]":
    """Return the promotions of the arms of a live experiment."""
    from headrace.deploy.connections import kafka_settings
    from headrace.deploy.reports.tracking import published_promotions

    topics = {str(each.settings.get("topic")) for each in history if each.kind == "log"}
    names = {each.name for each in history}
    return [
        each
        for each in published_promotions(kafka_settings(kafka, kafka_client))
        for control in [str(each.settings["control"])]
        if f"examples.{control}" in topics and each.name.removeprefix(f"{control}-") in names
    ]


@app.command("list")
def list_runs(
    folder: RunsPath = None, kafka: KafkaAddress = KAFKA, kafka_client: KafkaClient = None
) -> None:
    """List the runs in the subfolders of a folder, or the live experiments."""
    from headrace.learner.experiments import read_history

    columns = columns_of(sys.stdout)
    if folder is not None:
        for path in sorted(folder.glob("*/history.ndjson")):
            state = _state_of(path.parent.name, read_history(path.parent))
            typer.echo(wrapped(state, columns))
        return
    histories = _live_histories(kafka, kafka_client)
    if not histories:
        typer.echo(wrapped(_NOTHING_YET, columns))
    for name, found in sorted(histories.items()):
        asked = ", asked to stop" if found.stop else ""
        typer.echo(wrapped(f"{_state_of(name, found.records)}{asked}", columns))


def _state_of(name: str, history: "list[ArmRecord]") -> str:
    arms = {record.arm for record in history} - {0}
    state = "done" if any(record.kind == "ended" for record in history) else "unfinished"
    examples = max((record.examples for record in history), default=0)
    return f"{name}: {state}, {counted(len(arms), 'arm')}, {counted(examples, 'example')}"


@app.command("stop")
def stop_experiment(
    name: LiveName, kafka: KafkaAddress = KAFKA, kafka_client: KafkaClient = None
) -> None:
    """End a live experiment: its runner ranks the arms that are left, and ends."""
    from contextlib import closing

    from headrace.deploy.connections import kafka_settings
    from headrace.ingest.kafka import KafkaWriter
    from headrace.learner.experiments.live import request_stop

    _history_of(name, kafka, kafka_client)
    with closing(KafkaWriter(kafka_settings(kafka, kafka_client))) as writer:
        request_stop(writer, name)
    typer.echo(f"asked the runner of {name} to stop")


def _say(result: "ExperimentResult") -> None:
    typer.echo(
        f"best: {result.best.name}, log loss {result.loss:.5f}, {result.difference:+.5f} to the "
        f"control's {result.control_loss:.5f}"
    )
    for key, value in result.best.settings.items():
        typer.echo(f"  {key} = {json.dumps(value)}")
    if result.best.number:
        proven = "proven" if result.promotable else "not proven"
        typer.echo(f"better than the control: {proven} by its confidence sequence")
    typer.echo(
        f"{counted(result.steps, 'example')} learned by all arms, of a log of {result.examples:,}"
    )
