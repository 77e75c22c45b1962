"""`headrace run` and `headrace up`: a whole pipeline on this machine, for logs or until Ctrl-C.

`headrace status` shows the processes of a pipeline, on this machine or elsewhere.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

import click

from headrace.deploy.cli.runs import run_outputs
from headrace.deploy.models.shipped import shipped_specs
from headrace.deploy.options import (
    DATA,
    LAYOUT_NAME,
    MODEL,
    PORT,
    RUNS_FOLDER,
    SORT,
    SPEED,
    TRACK_URI,
    KafkaOptions,
    PipelineOptions,
    SpecFile,
    layout_of,
)
from headrace.deploy.process_logs import show_warnings_only
from headrace.runtime.clock import wall_ms
from headrace.runtime.settings import setting
from headrace.runtime.termination import INTERRUPTED, stopped_by_signals

_STOPPING = "stopping every part, within 20 s; Ctrl-C again ends this at once"
"""Answer to a signal where a whole pipeline stops."""


def speed_of(text: str) -> float | None:
    """Return the multiple of real time; None for as fast as the pipeline follows."""
    if text == "max":
        return None
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0.0 < speed < float("inf"):
        raise click.BadParameter(
            f"expected a number above 0, or max, got {text!r}", param_hint="--speed"
        )
    return speed


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of `headrace run`."""

    report: Path | None = setting(None, metavar="FILE")
    """File for the report (JSON)."""
    serve_after: bool = setting(False)
    """Keep serving after the replay, until Ctrl-C."""
    check: bool = setting(True)
    """Check each log before any process starts."""


def run(
    options: RunOptions,
    pipeline: PipelineOptions,
    model: SpecFile = MODEL,
    data: list[Path] = DATA,
    layout: str = LAYOUT_NAME,
    speed: str = SPEED,
    port: int = PORT,
    sort: bool = SORT,
    runs: str = RUNS_FOLDER,
    track: str = TRACK_URI,
) -> None:
    """Replay logs through a pipeline on this machine and report the accuracy.

    With --serve-after, the server stays up, and loads the models of the topic `deployments`. With
    --state or --kafka, the same command continues an interrupted run.
    """
    times_real_time = speed_of(speed)
    from headrace.deploy.local.log_run import RunSettings, run_log
    from headrace.deploy.local.pipeline import PipelineSettings
    from headrace.deploy.reports.tracking.run_recorder import record_run
    from headrace.deploy.reports.tracking.tracked_run import RunKind, RunState

    parts = PipelineSettings(
        **asdict(pipeline),
        model=model.path,
        port=port,
        deployments=True,
        evaluation_gives_way=not options.serve_after,
    )
    settings = RunSettings(
        parts,
        tuple(data),
        options.report,
        times_real_time,
        options.serve_after,
        layout_of(layout, data),
        sort,
        options.check,
    )
    outputs = run_outputs(runs, track)
    show_warnings_only()
    with (
        stopped_by_signals(_STOPPING) as stop,
        record_run(outputs, RunKind.RUN, model.spec.name, model.path, data=data) as recorder,
    ):
        run_log(settings, stop, recorder.report)
        interrupted = recorder.run.state is RunState.UNFINISHED
        if interrupted:
            recorder.change(state=RunState.STOPPED)
    if interrupted:
        raise click.exceptions.Exit(INTERRUPTED)


def warm(
    model: list[SpecFile] | None = setting(
        None,
        "Model spec (TOML). Repeatable. Default: the specs that headrace ships, except "
        "those that need torch.",
        metavar="FILE",
    ),
) -> None:
    """Compile the kernels of models and keep the machine code, for an image with a read-only root.

    Without this command, every new container compiles the kernels when it starts.
    """
    from headrace.deploy.local.kernel_warmup import warm as compile_kernels
    from headrace.deploy.local.kernel_warmup import warm_server

    shipped = (SpecFile.read(path) for path in shipped_specs())
    for each in model or [each for each in shipped if each.spec.optimizers.dense is None]:
        compile_kernels(each.spec)
        warm_server(each.spec)
        click.echo(f"compiled the kernels of {each.path.stem}")


def up(
    pipeline: PipelineOptions,
    model: SpecFile = MODEL,
    port: int = PORT,
    collector_port: int = setting(
        0,
        "Port on which events are accepted over HTTP. 0: any free port.",
        env="HEADRACE_COLLECTOR_PORT",
        least=0,
        most=65535,
    ),
) -> None:
    """Run Kafka, Valkey and every part for a spec until Ctrl-C, and print commands to try it."""
    from headrace.deploy.local.pipeline import PipelineSettings
    from headrace.deploy.local.pipeline_usage import keep_up

    settings = PipelineSettings(
        **asdict(pipeline),
        model=model.path,
        port=port,
        collector_port=collector_port,
        deployments=True,
        evaluation_gives_way=False,
    )
    show_warnings_only()
    with stopped_by_signals(_STOPPING) as stop:
        keep_up(settings, stop)


def status(
    kafka: KafkaOptions,
    as_json: bool = setting(False, "Print JSON.", flag="--json"),
) -> None:
    """Print the processes that run with --kafka, and which fields events and requests have.

    A field is marked if events or requests lack it, or if their shares differ by 20 percentage
    points. The shares cover the last ten minutes.
    """
    import orjson

    from headrace.deploy.operations.live_status import read_status, status_text

    show_warnings_only()
    figures = read_status(kafka.settings(), wall_ms())
    if as_json:
        kept = ("now_ms", "processes", "coverage", "dead_letters")
        click.echo(orjson.dumps({key: figures[key] for key in kept}, option=orjson.OPT_INDENT_2))
    else:
        click.echo(status_text(figures))
