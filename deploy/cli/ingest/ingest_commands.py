"""`headrace ingest`: collects, joins, replays, archives and repairs events."""

from dataclasses import dataclass
from pathlib import Path

import click

from headrace.deploy.cli.serving.serving_commands import token_source
from headrace.deploy.options import (
    HOST,
    INSTANCE,
    METRICS_HOST,
    METRICS_PORT,
    MODEL,
    PARTITIONS,
    PORT,
    SKIP_DAMAGED,
    KafkaOptions,
    SpecFile,
)
from headrace.runtime.counted_nouns import counted
from headrace.runtime.settings import argument, same, setting
from headrace.runtime.termination import stopped_by_signals, stopped_while_calls_hang


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestCollectOptions:
    """Options of `headrace ingest collect`."""

    tokens: Path | None = setting(None, env="HEADRACE_COLLECT_TOKENS_FILE", metavar="FILE")
    """File with the accepted tokens, one per line, each with optional limits: TOKEN name=NAME
    requests_per_second=N. HEADRACE_COLLECT_TOKENS takes tokens directly, separated by commas."""
    anyone: bool = setting(False, env="HEADRACE_COLLECT_ANYONE")
    """Accept requests from other machines without a token. Use only behind a proxy that checks
    clients."""
    deadline_s: float = setting(15.0, env="HEADRACE_COLLECT_DEADLINE_S", least=1.0)
    """Deadline for Kafka to persist an event, in seconds. Then the answer is 503."""
    by_request: bool = setting(False, env="HEADRACE_COLLECT_BY_REQUEST")
    """Use request_id as the key of events, so that the candidates of a request are scored together.
    Use only if clicks contain the request_id of their impression."""
    drain_ms: int = setting(0, env="HEADRACE_COLLECT_DRAIN_MS", least=0)
    """Time to accept events after SIGTERM, while /health/ready answers 503, in milliseconds."""


def collect(
    options: IngestCollectOptions,
    kafka: KafkaOptions,
    host: str = HOST,
    port: int = same(PORT, 8090),
    metrics_port: int = METRICS_PORT,
    metrics_host: str = METRICS_HOST,
) -> None:
    """Accept events over HTTP and acknowledge each once Kafka has persisted it, until stopped."""
    from headrace.ingest.collector.collector_process import CollectorSettings, run_collector

    clients = (source := token_source("HEADRACE_COLLECT_TOKENS", options.tokens)).read()
    settings = CollectorSettings(
        host=host,
        port=port,
        tokens=[each.token for each in clients],
        grants=clients,
        tokens_from=source,
        anyone=options.anyone,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        deadline_s=options.deadline_s,
        drain_ms=options.drain_ms,
        by_request=options.by_request,
    )
    with stopped_by_signals() as stop:
        run_collector(settings, kafka.settings(), stop)


def topics(
    kafka: KafkaOptions,
    model: SpecFile = MODEL,
    partitions: int = PARTITIONS,
    replicas: int | None = setting(
        None,
        "Replicas of each partition. An event is acknowledged once all but one have it. "
        "Default: the setting of the brokers.",
        env="HEADRACE_REPLICAS",
        least=1,
    ),
    change: bool = setting(
        False,
        "Change those settings of existing topics on which headrace depends, such as "
        "the type of timestamps of topics that a client created by writing to them.",
        flag="--change-settings",
    ),
) -> None:
    """Create the topics of a model, or check those that exist."""
    from headrace.ingest.kafka.topics import (
        AS_THE_BROKER_SAYS,
        change_settings,
        ensure_topics,
        topics_for,
    )

    specs = topics_for(
        model.spec.name,
        partitions,
        replicas=AS_THE_BROKER_SAYS if replicas is None else replicas,
    )
    settings = kafka.settings()
    for line in change_settings(settings, specs) if change else ():
        click.echo(line)
    chosen = ensure_topics(settings, specs)
    for spec in specs:
        click.echo(f"{spec.name}: {counted(spec.partitions, 'partition')}")
    for line in chosen:
        click.echo(f"note: {line}")


def join(
    kafka: KafkaOptions,
    model: SpecFile = MODEL,
    instance: str = INSTANCE,
    metrics_port: int = METRICS_PORT,
    metrics_host: str = METRICS_HOST,
    join_again: bool = setting(
        False,
        "Join from the first event if Kafka has forgotten the joiner's offsets and its "
        "examples contain no position. Writes them a second time.",
    ),
) -> None:
    """Join impressions and clicks into labelled examples, until stopped."""
    from headrace.deploy.local.kernel_warmup import warm_joiner
    from headrace.ingest.joiner.joiner_process import JoinerSettings, run_joiner

    spec = model.spec
    with stopped_by_signals() as stop, stopped_while_calls_hang(stop):
        warm_joiner(spec)
        run_joiner(
            JoinerSettings(
                instance=instance,
                metrics_port=metrics_port,
                metrics_host=metrics_host,
                join_again=join_again,
            ),
            kafka.settings(),
            spec.name,
            spec.fields,
            stop,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestSinkOptions:
    """Options of `headrace ingest sink`."""

    folder: str = argument(metavar="DIR")
    """Folder, or URL such as s3://BUCKET/PATH."""
    model: SpecFile | None = setting(None, env="HEADRACE_MODEL", metavar="FILE")
    """Model spec (TOML). If set, the examples of the model are archived as well."""
    most_age_s: float = setting(300.0, env="HEADRACE_SINK_MOST_AGE_S", least=0.1)
    """Age at which a small batch is written, in seconds."""


def sink(
    options: IngestSinkOptions,
    kafka: KafkaOptions,
    metrics_port: int = METRICS_PORT,
    metrics_host: str = METRICS_HOST,
    skip_damaged: list[str] | None = SKIP_DAMAGED,
) -> None:
    """Archive events and examples as hourly Parquet files, each exactly once, until stopped."""
    from headrace.ingest.archive.archiver import ArchiveSettings, run_archiver

    name = options.model.spec.name if options.model is not None else None
    settings = ArchiveSettings(
        most_age_s=options.most_age_s,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        skip_damaged=tuple(skip_damaged or ()),
    )
    with stopped_by_signals() as stop:
        run_archiver(settings, kafka.settings(), name, options.folder, stop)
