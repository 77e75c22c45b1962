"""`headrace demo`: shows a model that learns from a live stream."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headrace.deploy.cli.options import PORT, RUNS_FOLDER, TRACK_URI, PipelineOptions, valid_specs
from headrace.deploy.cli.run import speed_of
from headrace.deploy.cli.runs import run_outputs
from headrace.deploy.errors import BadOption
from headrace.settings import same, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """Options of `headrace demo`."""

    seconds: float = setting(180.0, least=5.0)
    """Length of the demo in seconds."""
    data: Path | None = setting(None, metavar="DIR")
    """Log to replay instead of a synthetic stream."""
    model: Path | None = setting(None, metavar="FILE", check=valid_specs)
    """Model spec for --data. Default: the spec of the sample data."""
    speed: str | None = setting(None, metavar="N|max")
    """With --data: multiple of real time. Default: the log takes --seconds."""
    events: int | None = setting(None, least=10)
    """Synthetic events per second, if the machine keeps up. Default: 2000, or 600 with
    --experiment."""
    seed: int = setting(1, least=0)
    """Seed of the synthetic stream."""
    chaos: bool = setting(False)
    """Kill the learner (SIGKILL) during the demo."""
    experiment: bool = setting(False)
    """Run twelve arms on the stream, promote the best one, and roll back a bad one."""


def demo(
    options: DemoOptions,
    pipeline: PipelineOptions,
    port: int = same(PORT, 8000),
    runs: str = RUNS_FOLDER,
    track: str = TRACK_URI,
) -> None:
    """Learn from a live stream, and compare with a copy of the model that stopped learning."""
    times_real_time = None if options.speed is None else speed_of(options.speed)
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

    if options.experiment:
        refuse_beside_experiment(options.data, options.model, pipeline)
    shipped = (
        control_file()
        if options.experiment
        else path_of("demo" if options.data is None else "news")
    )
    spec = options.model or shipped
    events = options.events or (EVENTS_S if options.experiment else 2000)
    parts = pipeline.settings(spec, port, port_may_differ=True)
    if options.experiment:
        parts = replace(
            parts,
            deployments=True,
            evaluation_gives_way=False,
            evaluation_window_s=EVALUATION_WINDOW_S,
        )
    settings = DemoSettings(
        parts,
        options.seconds,
        events,
        options.seed,
        options.data,
        times_real_time,
        full_speed=options.speed == "max",
        chaos=options.chaos,
        experiment=options.experiment,
    )
    shown: dict[str, Any] = {
        "seconds": options.seconds,
        "events": events,
        "chaos": options.chaos,
    }
    if options.experiment:
        shown["experiment"] = True
    name = load_spec(spec).name
    logs = () if options.data is None else (options.data,)
    show_warnings_only()
    with (
        stopped_by_signals() as stop,
        run_outputs(runs, track) as outputs,
        record_run(
            *(outputs, RunKind.DEMO, name, spec), data=logs, seed=options.seed, settings=shown
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
