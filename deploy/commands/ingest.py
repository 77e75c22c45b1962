"""`headrace ingest`: join events, or replay a log of them."""

from pathlib import Path
from typing import Annotated

import typer

from deploy.commands.options import (
    KAFKA,
    Instance,
    KafkaAddress,
    KafkaClient,
    MetricsPort,
    ModelFile,
    Partitions,
    Speed,
)

app = typer.Typer(help="Join events, or replay a log of them.", no_args_is_help=True)


@app.command()
def topics(
    model: ModelFile,
    kafka: KafkaAddress = KAFKA,
    kafka_client: KafkaClient = None,
    partitions: Partitions = 4,
) -> None:
    """Make a model's topics, or check that those there are as they must be."""
    from deploy.commands.building import kafka_settings
    from ingest.kafka import ensure_topics, topics_for
    from learner.spec import load_spec

    specs = topics_for(load_spec(model).name, partitions)
    ensure_topics(kafka_settings(kafka, kafka_client), specs)
    for spec in specs:
        typer.echo(f"{spec.name}: {spec.partitions} partitions")


@app.command()
def join(
    model: ModelFile,
    kafka: KafkaAddress = KAFKA,
    kafka_client: KafkaClient = None,
    instance: Instance = "",
    metrics_port: MetricsPort = 0,
) -> None:
    """Join impressions with clicks into examples, until stopped."""
    from deploy.commands.building import kafka_settings
    from deploy.signals import stopped_by_signals
    from ingest.joiner import JoinerSettings, run_joiner
    from learner.spec import load_spec

    spec = load_spec(model)
    with stopped_by_signals() as stop:
        run_joiner(
            JoinerSettings(instance=instance, metrics_port=metrics_port),
            kafka_settings(kafka, kafka_client),
            spec.name,
            spec.fields,
            stop,
        )


@app.command()
def replay(
    model: ModelFile,
    data: Annotated[
        list[Path],
        typer.Option(
            "--data",
            metavar="DIR",
            help="A directory with impressions.ndjson[.zst] and clicks.ndjson[.zst]; several are "
            "replayed one after another.",
        ),
    ],
    speed: Speed = "max",
    kafka: KafkaAddress = KAFKA,
    kafka_client: KafkaClient = None,
) -> None:
    """Send a log of events to Kafka, in the order they happened."""
    from rich.console import Console

    from deploy.commands.building import kafka_settings
    from deploy.commands.run import speed_of
    from deploy.log_replay import LogReplay
    from deploy.replay_view import watch_replay
    from deploy.signals import stopped_by_signals
    from learner.spec import load_spec

    replaying = LogReplay(
        kafka_settings(kafka, kafka_client), load_spec(model), data, speed_of(speed)
    )
    with stopped_by_signals() as stop:
        watch_replay(replaying, Console(stderr=True), stop)
    replayed = replaying.replayed
    impressions = sum(each.impressions for each in replayed.directories)
    clicks = sum(each.clicks for each in replayed.directories)
    typer.echo(f"sent {impressions:,} impressions and {clicks:,} clicks")
