"""`headrace demo`: watch a model learn."""

from pathlib import Path
from typing import Annotated

from typer import Option

from headrace.deploy.cli.options import (
    Buckets,
    Evaluated,
    Host,
    KafkaClient,
    KafkaJars,
    OwnKafka,
    OwnRedis,
    Partitions,
    Port,
    StateDirectory,
)
from headrace.deploy.cli.run import speed_of


def demo(
    seconds: Annotated[float, Option("--seconds", min=5.0, help="How long to show.")] = 180.0,
    data: Annotated[
        Path | None,
        Option("--data", metavar="DIR", help="Replay this log instead of a synthetic stream."),
    ] = None,
    model: Annotated[
        Path | None,
        Option(
            "--model",
            metavar="FILE",
            help="The model spec for --data. Default: the one for the sample data.",
        ),
    ] = None,
    speed: Annotated[
        str | None,
        Option(
            "--speed",
            metavar="N|max",
            help="For --data: N times real time. Default: so that the log lasts --seconds.",
        ),
    ] = None,
    events: Annotated[
        int, Option("--events", min=10, help="Synthetic events a second, if the machine follows.")
    ] = 2000,
    seed: Annotated[int, Option("--seed", min=0, help="Of the synthetic stream.")] = 1,
    chaos: Annotated[
        bool, Option("--chaos", help="Kill the learner (SIGKILL) in the middle of the show.")
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
    port: Port = 8000,
) -> None:
    """Learn a stream live, beside a copy of the model that stopped learning."""
    times_real_time = None if speed is None else speed_of(speed)
    from headrace.deploy.demo import DemoSettings, run_demo
    from headrace.deploy.local import PipelineSettings
    from headrace.deploy.models import path_of
    from headrace.deploy.termination import stopped_by_signals

    road = PipelineSettings(
        model=model or path_of("demo" if data is None else "news"),
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
        port_may_differ=True,
    )
    settings = DemoSettings(
        road, seconds, events, seed, data, times_real_time, full_speed=speed == "max", chaos=chaos
    )
    with stopped_by_signals() as stop:
        run_demo(settings, stop)
