"""`headrace run`: the whole road on one machine, for a log of events."""

from pathlib import Path
from typing import Annotated

from typer import BadParameter, Option

from headrace.deploy.cli.options import (
    Buckets,
    Data,
    Evaluated,
    Host,
    KafkaClient,
    KafkaJars,
    LayoutName,
    ModelFile,
    OwnKafka,
    OwnRedis,
    Partitions,
    Port,
    Speed,
    StateDirectory,
)


def speed_of(text: str) -> float | None:
    """Return how many times faster than real time, or None for as fast as the pipeline follows."""
    if text == "max":
        return None
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0.0 < speed < float("inf"):
        raise BadParameter(
            f"expected a number above 0, or max, found {text!r}", param_hint="--speed"
        )
    return speed


def run(
    model: ModelFile,
    data: Data,
    layout: LayoutName = "",
    report: Annotated[
        Path | None, Option("--report", metavar="FILE", help="Write the report (JSON) here.")
    ] = None,
    speed: Speed = "max",
    serve_after: Annotated[
        bool, Option("--serve-after", help="When all is learned, serve on until Ctrl-C.")
    ] = False,
    kafka: OwnKafka = None,
    kafka_client: KafkaClient = None,
    redis: OwnRedis = None,
    kafka_jars: KafkaJars = None,
    state: StateDirectory = None,
    partitions: Partitions = 2,
    buckets: Buckets = 8,
    evaluate: Evaluated = True,
    host: Host = "127.0.0.1",
    port: Port = 0,
) -> None:
    """Replay logs through every part on this machine; report what was learned."""
    times_real_time = speed_of(speed)
    from headrace.deploy.local import PipelineSettings, RunSettings, run_log
    from headrace.deploy.termination import stopped_by_signals
    from headrace.ingest.replay import load_layout

    columns = load_layout(layout) if layout else None
    road = PipelineSettings(
        model=model,
        kafka=kafka,
        kafka_client=tuple(kafka_client or ()),
        redis=redis,
        kafka_jars=kafka_jars,
        state=state,
        partitions=partitions,
        buckets=buckets,
        evaluated=evaluate,
        host=host,
        port=port,
    )
    with stopped_by_signals() as stop:
        run_log(RunSettings(road, tuple(data), report, times_real_time, serve_after, columns), stop)
