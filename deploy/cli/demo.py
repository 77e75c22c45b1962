"""`headrace demo`: shows a model that learns from a live stream."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from headrace.deploy.cli.options import Port, RunsFolder, TrackUri, valid_specs
from headrace.deploy.cli.pipeline_options import PipelineOptions, with_pipeline_options
from headrace.deploy.cli.run import speed_of
from headrace.deploy.cli.runs import run_outputs
from headrace.deploy.errors import BadOption

Seconds = Annotated[float, Option("--seconds", min=5.0, help="Length of the demo in seconds.")]
LogDirectory = Annotated[
    Path | None,
    Option("--data", metavar="DIR", help="Log to replay instead of a synthetic stream."),
]
LogModel = Annotated[
    Path | None,
    Option(
        "--model",
        metavar="FILE",
        help="Model spec for --data. Default: the spec of the sample data.",
        callback=valid_specs,
    ),
]
Speed = Annotated[
    str | None,
    Option(
        "--speed",
        metavar="N|max",
        help="With --data: multiple of real time. Default: the log takes --seconds.",
    ),
]
EventsPerSecond = Annotated[
    int | None,
    Option(
        "--events",
        min=10,
        help="Synthetic events per second, if the machine keeps up. Default: 2000, or 600 with "
        "--experiment.",
        show_default=False,
    ),
]
Seed = Annotated[int, Option("--seed", min=0, help="Seed of the synthetic stream.")]
Chaos = Annotated[bool, Option("--chaos", help="Kill the learner (SIGKILL) during the demo.")]
WithExperiment = Annotated[
    bool,
    Option(
        "--experiment",
        help="Run twelve arms on the stream, promote the best one, and roll back a bad one.",
    ),
]


@with_pipeline_options
def demo(
    pipeline: PipelineOptions,
    seconds: Seconds = 180.0,
    data: LogDirectory = None,
    model: LogModel = None,
    speed: Speed = None,
    events: EventsPerSecond = None,
    seed: Seed = 1,
    chaos: Chaos = False,
    experiment: WithExperiment = False,
    port: Port = 8000,
    runs: RunsFolder = "",
    track: TrackUri = "",
) -> None:
    """Learn from a live stream, and compare with a copy of the model that stopped learning."""
    times_real_time = None if speed is None else speed_of(speed)
    from headrace.deploy.demo import (
        EVALUATION_WINDOW_S,
        EVENTS_S,
        DemoSettings,
        control_file,
        run_demo,
    )
    from headrace.deploy.models import path_of
    from headrace.deploy.process_logs import show_warnings_only
    from headrace.deploy.reports.tracking import RunKind, record_run
    from headrace.deploy.termination import stopped_by_signals
    from headrace.learner.spec import load_spec

    if experiment:
        refuse_beside_experiment(data, model, pipeline)
    shipped = control_file() if experiment else path_of("demo" if data is None else "news")
    spec = model or shipped
    events = events or (EVENTS_S if experiment else 2000)
    parts = pipeline.settings(spec, port, port_may_differ=True)
    if experiment:
        parts = replace(
            parts,
            deployments=True,
            evaluation_gives_way=False,
            evaluation_window_s=EVALUATION_WINDOW_S,
        )
    settings = DemoSettings(
        parts,
        seconds,
        events,
        seed,
        data,
        times_real_time,
        full_speed=speed == "max",
        chaos=chaos,
        experiment=experiment,
    )
    shown: dict[str, Any] = {"seconds": seconds, "events": events, "chaos": chaos}
    if experiment:
        shown["experiment"] = True
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


def refuse_beside_experiment(
    data: Path | None, model: Path | None, pipeline: PipelineOptions
) -> None:
    """Raise BadOption for options that contradict --experiment."""
    given = {
        "--data": data is not None,
        "--model": model is not None,
        "--kafka": pipeline.kafka is not None,
        "--redis": pipeline.redis is not None,
        "--state": pipeline.state is not None,
        "--no-evaluate": not pipeline.evaluate,
    }
    found = [name for name, there in given.items() if there]
    if found:
        raise BadOption(
            "--experiment: expected the synthetic stream, with a Kafka and a Redis that the demo "
            f"starts, and live evaluation, got {', '.join(found)}"
        )
