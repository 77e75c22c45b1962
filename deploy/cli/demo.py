"""`headrace demo`: shows a model that learns from a live stream."""

from dataclasses import asdict, dataclass

from headrace.deploy.cli.runs import run_outputs
from headrace.deploy.models.shipped import path_of
from headrace.deploy.options import PORT, RUNS_FOLDER, TRACK_URI, PipelineOptions, SpecFile
from headrace.deploy.process_logs import show_warnings_only
from headrace.runtime.settings import same, setting
from headrace.runtime.termination import stopped_by_signals


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """Options of `headrace demo`."""

    seconds: float = setting(180.0, least=5.0)
    """Length of the demo in seconds."""
    events: int = setting(2000, least=10)
    """Synthetic events per second, if the machine keeps up."""
    seed: int = setting(1, least=0)
    """Seed of the synthetic stream."""


def demo(
    options: DemoOptions,
    pipeline: PipelineOptions,
    port: int = same(PORT, 8000),
    runs: str = RUNS_FOLDER,
    track: str = TRACK_URI,
) -> None:
    """Learn from a live stream, and compare with a copy of the model that stopped learning."""
    from headrace.deploy.demo.runner import DemoSettings, run_demo
    from headrace.deploy.local.pipeline import PipelineSettings
    from headrace.deploy.reports.tracking.run_recorder import record_run
    from headrace.deploy.reports.tracking.tracked_run import RunKind

    model = SpecFile.read(path_of("demo"))
    parts = PipelineSettings(**asdict(pipeline), model=model.path, port=port, port_may_differ=True)
    settings = DemoSettings(parts, options.seconds, options.events, options.seed)
    show_warnings_only()
    with (
        stopped_by_signals() as stop,
        record_run(
            *(run_outputs(runs, track), RunKind.DEMO, model.spec.name, model.path),
            seed=options.seed,
            settings={"seconds": options.seconds, "events": options.events},
        ) as recorder,
    ):
        run_demo(settings, stop, recorder)
