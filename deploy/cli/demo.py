"""`headrace demo`: shows a model that learns from a live stream."""

from pathlib import Path
from typing import Annotated, Any

from typer import Option

from headrace.deploy.cli.options import Port, RunsFolder, TrackUri, valid_specs
from headrace.deploy.cli.pipeline_options import PipelineOptions, with_pipeline_options
from headrace.deploy.cli.run import speed_of
from headrace.deploy.cli.runs import run_outputs


@with_pipeline_options
def demo(
    pipeline: PipelineOptions,
    seconds: Annotated[
        float, Option("--seconds", min=5.0, help="Length of the demo in seconds.")
    ] = 180.0,
    data: Annotated[
        Path | None,
        Option("--data", metavar="DIR", help="Log to replay instead of a synthetic stream."),
    ] = None,
    model: Annotated[
        Path | None,
        Option(
            "--model",
            metavar="FILE",
            help="Model spec for --data. Default: the spec of the sample data.",
            callback=valid_specs,
        ),
    ] = None,
    speed: Annotated[
        str | None,
        Option(
            "--speed",
            metavar="N|max",
            help="With --data: multiple of real time. Default: the log takes --seconds.",
        ),
    ] = None,
    events: Annotated[
        int,
        Option("--events", min=10, help="Synthetic events per second, if the machine keeps up."),
    ] = 2000,
    seed: Annotated[int, Option("--seed", min=0, help="Seed of the synthetic stream.")] = 1,
    chaos: Annotated[
        bool, Option("--chaos", help="Kill the learner (SIGKILL) during the demo.")
    ] = False,
    port: Port = 8000,
    runs: RunsFolder = "",
    track: TrackUri = "",
) -> None:
    """Learn from a live stream, and compare with a copy of the model that stopped learning."""
    times_real_time = None if speed is None else speed_of(speed)
    from headrace.deploy.demo import DemoSettings, run_demo
    from headrace.deploy.models import path_of
    from headrace.deploy.process_logs import show_warnings_only
    from headrace.deploy.reports.tracking import RunKind, record_run
    from headrace.deploy.termination import stopped_by_signals
    from headrace.learner.spec import load_spec

    spec = model or path_of("demo" if data is None else "news")
    settings = DemoSettings(
        pipeline.settings(spec, port, port_may_differ=True),
        seconds,
        events,
        seed,
        data,
        times_real_time,
        full_speed=speed == "max",
        chaos=chaos,
    )
    shown: dict[str, Any] = {"seconds": seconds, "events": events, "chaos": chaos}
    name = load_spec(spec).name
    logs = () if data is None else (data,)
    show_warnings_only()
    with (
        stopped_by_signals() as stop,
        run_outputs(runs, track) as outputs,
        record_run(
            *(outputs, RunKind.DEMO, name, spec), data=logs, seed=seed, settings=shown
        ) as recorder,
    ):
        run_demo(settings, stop, recorder)
