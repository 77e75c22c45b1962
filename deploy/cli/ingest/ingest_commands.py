"""`headrace ingest`: collects, joins, replays, archives and repairs events."""

from pathlib import Path
from typing import Annotated

import typer

from headrace.counted_nouns import counted
from headrace.deploy.cli.ingest import ingest_dead_letters
from headrace.deploy.cli.ingest.ingest_replay import replay
from headrace.deploy.cli.options import (
    KAFKA,
    LOOPBACK,
    Host,
    Instance,
    KafkaAddress,
    KafkaClient,
    MetricsHost,
    MetricsPort,
    ModelFile,
    Partitions,
    Port,
    SkipDamaged,
    valid_specs,
)
from headrace.ingest.events import EventKind

app = typer.Typer(
    help="Collect, join, replay, archive and repair events.",
    no_args_is_help=True,
)
app.command()(replay)
app.add_typer(ingest_dead_letters.app, name="dead-letters")

ByRequest = Annotated[
    bool,
    typer.Option(
        "--by-request",
        envvar="HEADRACE_COLLECT_BY_REQUEST",
        help="Use request_id as the key of events, so that the candidates of a request are "
        "scored together. Use only if clicks contain the request_id of their impression.",
    ),
]


@app.command()
def collect(
    kafka: KafkaAddress = KAFKA,
    kafka_client: KafkaClient = None,
    host: Host = "127.0.0.1",
    port: Port = 8090,
    tokens: Annotated[
        Path | None,
        typer.Option(
            "--tokens",
            envvar="HEADRACE_COLLECT_TOKENS_FILE",
            metavar="FILE",
            help="File with the accepted tokens, one per line, each with optional limits: TOKEN "
            "name=NAME requests_per_second=N. HEADRACE_COLLECT_TOKENS takes tokens directly, "
            "separated by commas.",
        ),
    ] = None,
    anyone: Annotated[
        bool,
        typer.Option(
            "--anyone",
            envvar="HEADRACE_COLLECT_ANYONE",
            help="Accept requests from other machines without a token. Use only behind a "
            "proxy that checks clients.",
        ),
    ] = False,
    deadline_s: Annotated[
        float,
        typer.Option(
            "--deadline-s",
            envvar="HEADRACE_COLLECT_DEADLINE_S",
            min=1.0,
            help="Deadline for Kafka to persist an event, in seconds. Then the answer is 503.",
        ),
    ] = 15.0,
    by_request: ByRequest = False,
    drain_ms: Annotated[
        int,
        typer.Option(
            "--drain-ms",
            envvar="HEADRACE_COLLECT_DRAIN_MS",
            min=0,
            help="Time to accept events after SIGTERM, while /health/ready answers 503, in "
            "milliseconds.",
        ),
    ] = 0,
    metrics_port: MetricsPort = 0,
    metrics_host: MetricsHost = LOOPBACK,
) -> None:
    """Accept events over HTTP and acknowledge each once Kafka has persisted it, until stopped."""
    from headrace.deploy.cli.serving import token_source
    from headrace.deploy.connections import kafka_settings
    from headrace.deploy.termination import stopped_by_signals
    from headrace.ingest.collector import CollectorSettings, run_collector

    clients = (source := token_source("HEADRACE_COLLECT_TOKENS", tokens)).read()
    settings = CollectorSettings(
        host=host,
        port=port,
        tokens=[each.token for each in clients],
        grants=clients,
        tokens_from=source,
        anyone=anyone,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        deadline_s=deadline_s,
        drain_ms=drain_ms,
        by_request=by_request,
    )
    with stopped_by_signals() as stop:
        run_collector(settings, kafka_settings(kafka, kafka_client), stop)


@app.command()
def schema(
    event: Annotated[EventKind, typer.Argument(help="Kind of event.")],
) -> None:
    """Print the JSON Schema of an event."""
    import json

    from headrace.ingest.events import event_schema

    typer.echo(json.dumps(event_schema(event), indent=2))


@app.command()
def topics(
    model: ModelFile,
    kafka: KafkaAddress = KAFKA,
    kafka_client: KafkaClient = None,
    partitions: Partitions = 4,
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replicas",
            envvar="HEADRACE_REPLICAS",
            min=1,
            help="Replicas of each partition. An event is acknowledged once all but one have it. "
            "Default: the setting of the brokers.",
            show_default=False,
        ),
    ] = None,
    change: Annotated[
        bool,
        typer.Option(
            "--change-settings",
            help="Change those settings of existing topics on which headrace depends, such as "
            "the type of timestamps of topics that a client created by writing to them.",
        ),
    ] = False,
) -> None:
    """Create the topics of a model, or check those that exist."""
    from headrace.deploy.connections import kafka_settings
    from headrace.ingest.kafka import AS_THE_BROKER_SAYS, change_settings, ensure_topics, topics_for
    from headrace.learner.spec import load_spec

    specs = topics_for(
        load_spec(model).name,
        partitions,
        replicas=AS_THE_BROKER_SAYS if replicas is None else replicas,
    )
    settings = kafka_settings(kafka, kafka_client)
    for line in change_settings(settings, specs) if change else ():
        typer.echo(line)
    chosen = ensure_topics(settings, specs)
    for spec in specs:
        typer.echo(f"{spec.name}: {counted(spec.partitions, 'partition')}")
    for line in chosen:
        typer.echo(f"note: {line}")


@app.command()
def join(
    model: ModelFile,
    kafka: KafkaAddress = KAFKA,
    kafka_client: KafkaClient = None,
    instance: Instance = "",
    metrics_port: MetricsPort = 0,
    metrics_host: MetricsHost = LOOPBACK,
    join_again: Annotated[
        bool,
        typer.Option(
            "--join-again",
            help="Join from the first event if Kafka has forgotten the joiner's offsets and its "
            "examples contain no position. Writes them a second time.",
        ),
    ] = False,
) -> None:
    """Join impressions and clicks into labelled examples, until stopped."""
    from headrace.deploy.connections import kafka_settings
    from headrace.deploy.local import warm_joiner
    from headrace.deploy.termination import stopped_by_signals, stopped_while_calls_hang
    from headrace.ingest.joiner import JoinerSettings, run_joiner
    from headrace.learner.spec import load_spec

    spec = load_spec(model)
    with stopped_by_signals() as stop, stopped_while_calls_hang(stop):
        warm_joiner(spec)
        run_joiner(
            JoinerSettings(
                instance=instance,
                metrics_port=metrics_port,
                metrics_host=metrics_host,
                join_again=join_again,
            ),
            kafka_settings(kafka, kafka_client),
            spec.name,
            spec.fields,
            stop,
        )


@app.command()
def sink(
    folder: Annotated[
        str,
        typer.Argument(metavar="DIR", help="Folder, or URL such as s3://BUCKET/PATH."),
    ],
    model: Annotated[
        Path | None,
        typer.Option(
            "--model",
            envvar="HEADRACE_MODEL",
            metavar="FILE",
            help="Model spec (TOML). If set, the examples of the model are archived as well.",
            callback=valid_specs,
        ),
    ] = None,
    most_age_s: Annotated[
        float,
        typer.Option(
            "--most-age-s",
            envvar="HEADRACE_SINK_MOST_AGE_S",
            min=0.1,
            help="Age at which a small batch is written, in seconds.",
        ),
    ] = 300.0,
    kafka: KafkaAddress = KAFKA,
    kafka_client: KafkaClient = None,
    metrics_port: MetricsPort = 0,
    metrics_host: MetricsHost = LOOPBACK,
    skip_damaged: SkipDamaged = None,
) -> None:
    """Archive events and examples as hourly Parquet files, each exactly once, until stopped."""
    from headrace.deploy.connections import kafka_settings
    from headrace.deploy.termination import stopped_by_signals
    from headrace.ingest.archive import ArchiveSettings, run_archiver
    from headrace.learner.spec import load_spec

    name = load_spec(model).name if model is not None else None
    settings = ArchiveSettings(
        most_age_s=most_age_s,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        skip_damaged=tuple(skip_damaged or ()),
    )
    with stopped_by_signals() as stop:
        run_archiver(settings, kafka_settings(kafka, kafka_client), name, folder, stop)
