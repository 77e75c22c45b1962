"""`headrace run` and `headrace up`: a whole pipeline on this machine, for logs or until Ctrl-C.

`headrace status` shows the processes of a pipeline, on this machine or elsewhere.
"""

from pathlib import Path
from typing import Annotated

from typer import BadParameter, Exit, Option, echo

from headrace.deploy.cli.options import (
    KAFKA,
    Data,
    KafkaAddress,
    KafkaClient,
    LayoutName,
    ModelFile,
    Port,
    RunsFolder,
    Sort,
    Speed,
    TrackUri,
    layout_of,
)
from headrace.deploy.cli.pipeline_options import PipelineOptions, with_pipeline_options
from headrace.deploy.cli.runs import run_outputs


def speed_of(text: str) -> float | None:
    """Return the multiple of real time; None for as fast as the pipeline follows."""
    if text == "max":
        return None
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0.0 < speed < float("inf"):
        raise BadParameter(f"expected a number above 0, or max, got {text!r}", param_hint="--speed")
    return speed


@with_pipeline_options
def run(
    model: ModelFile,
    data: Data,
    pipeline: PipelineOptions,
    layout: LayoutName = "",
    report: Annotated[
        Path | None, Option("--report", metavar="FILE", help="File for the report (JSON).")
    ] = None,
    speed: Speed = "max",
    serve_after: Annotated[
        bool, Option("--serve-after", help="Keep serving after the replay, until Ctrl-C.")
    ] = False,
    port: Port = 0,
    sort: Sort = False,
    check: Annotated[
        bool,
        Option("--check/--no-check", help="Check each log before any process starts."),
    ] = True,
    runs: RunsFolder = "",
    track: TrackUri = "",
) -> None:
    """Replay logs through a pipeline on this machine and report the accuracy.

    With --serve-after, the server stays up, and loads the models of the topic `deployments`. With
    --state or --kafka, the same command continues an interrupted run.
    """
    times_real_time = speed_of(speed)
    from dataclasses import replace

    from headrace.deploy.local import RunSettings, run_log
    from headrace.deploy.process_logs import show_warnings_only
    from headrace.deploy.reports.tracking import RunKind, RunState, record_run
    from headrace.deploy.termination import INTERRUPTED, STOPPING, stopped_by_signals
    from headrace.learner.spec import load_spec

    parts = replace(
        pipeline.settings(model, port), deployments=True, evaluation_gives_way=not serve_after
    )
    settings = RunSettings(
        parts,
        tuple(data),
        report,
        times_real_time,
        serve_after,
        layout_of(layout, data),
        sort,
        check,
    )
    name = load_spec(model).name
    show_warnings_only()
    with (
        stopped_by_signals(STOPPING) as stop,
        run_outputs(runs, track) as outputs,
        record_run(outputs, RunKind.RUN, name, model, data=data) as recorder,
    ):
        run_log(settings, stop, recorder.report)
        interrupted = recorder.run.state is RunState.UNFINISHED
        if interrupted:
            recorder.change(state=RunState.STOPPED)
    if interrupted:
        raise Exit(INTERRUPTED)


def warm(
    model: Annotated[
        list[Path] | None,
        Option(
            "--model",
            metavar="FILE",
            help="Model spec (TOML). Repeatable. Default: the specs that headrace ships, except "
            "those that need torch.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Compile the kernels of models and keep the machine code, for an image with a read-only root.

    Without this command, every new container compiles the kernels when it starts.
    """
    from typer import echo

    from headrace.deploy.local import warm as compile_kernels
    from headrace.deploy.local import warm_server
    from headrace.deploy.models import specs_without_torch
    from headrace.learner.spec import load_spec

    for path in model or specs_without_torch():
        spec = load_spec(path)
        compile_kernels(spec)
        warm_server(spec)
        echo(f"compiled the kernels of {path.stem}")


@with_pipeline_options
def up(
    model: ModelFile,
    pipeline: PipelineOptions,
    port: Port = 0,
    collector_port: Annotated[
        int,
        Option(
            "--collector-port",
            envvar="HEADRACE_COLLECTOR_PORT",
            min=0,
            max=65535,
            help="Port on which events are accepted over HTTP. 0: any free port.",
        ),
    ] = 0,
) -> None:
    """Run Kafka, Valkey and every part for a spec until Ctrl-C, and print commands to try it."""
    from dataclasses import replace

    from headrace.deploy.local import keep_up
    from headrace.deploy.process_logs import show_warnings_only
    from headrace.deploy.termination import STOPPING, stopped_by_signals

    settings = pipeline.settings(model, port)
    settings = replace(
        settings, collector_port=collector_port, deployments=True, evaluation_gives_way=False
    )
    show_warnings_only()
    with stopped_by_signals(STOPPING) as stop:
        keep_up(settings, stop)


def status(
    kafka: KafkaAddress = KAFKA,
    kafka_client: KafkaClient = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the processes that run with --kafka, and which fields events and requests have.

    A field is marked if events or requests lack it, or if their shares differ by a fifth. The
    shares cover the last ten minutes.
    """
    import orjson

    from headrace.deploy.connections import kafka_settings
    from headrace.deploy.operations import read_status, status_text
    from headrace.deploy.process_logs import show_warnings_only
    from headrace.ingest.runtime import wall_ms

    show_warnings_only()
    figures = read_status(kafka_settings(kafka, kafka_client), wall_ms())
    if as_json:
        kept = ("now_ms", "processes", "coverage", "dead_letters")
        echo(orjson.dumps({key: figures[key] for key in kept}, option=orjson.OPT_INDENT_2))
    else:
        echo(status_text(figures))
