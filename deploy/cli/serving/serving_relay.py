"""`headrace serving relay`: relays the rows of a model to servers by one Kafka topic."""

from enum import StrEnum
from typing import Annotated

import typer

from headrace.deploy.cli.options import (
    KAFKA,
    LOOPBACK,
    REDIS,
    KafkaAddress,
    KafkaClient,
    MetricsHost,
    MetricsPort,
    ModelFile,
    RedisUrl,
)


class RelayedValues(StrEnum):
    """The values of a row that a relay writes."""

    ALL = "all"
    FINAL = "final"
    HALF = "half"


def relay(
    model: ModelFile,
    redis: RedisUrl = REDIS,
    kafka: KafkaAddress = KAFKA,
    kafka_client: KafkaClient = None,
    interval_ms: Annotated[
        int,
        typer.Option(
            "--interval-ms",
            envvar="HEADRACE_RELAY_INTERVAL_MS",
            min=1,
            help="Milliseconds between two writes. A row that changed several times is written "
            "once. On average, answers are older by half of this time.",
        ),
    ] = 200,
    base_interval_s: Annotated[
        int,
        typer.Option(
            "--base-interval-s",
            envvar="HEADRACE_RELAY_BASE_INTERVAL_S",
            min=10,
            help="Seconds in which all rows are written once. A new server reads two to three "
            "times as much at its start.",
        ),
    ] = 600,
    values: Annotated[
        RelayedValues,
        typer.Option(
            "--values",
            envvar="HEADRACE_RELAY_VALUES",
            help="The values of a row that are written. `all`: the row, which every version reads. "
            "`final`: the values that scores are computed from, without the optimizer's sums. "
            "`half`: the same, weights and vectors in 16 bits.",
        ),
    ] = RelayedValues.ALL,
    metrics_port: MetricsPort = 0,
    metrics_host: MetricsHost = LOOPBACK,
) -> None:
    """Follow the logs of a model, and write its changed rows to the topic relay.MODEL.

    Servers with --relay read this topic in place of the logs. A second relay of the same model
    takes over from the first, which ends at its next write.
    """
    from contextlib import closing

    from headrace.deploy.connections import kafka_settings, open_store
    from headrace.deploy.termination import stopped_by_signals, stopped_while_calls_hang
    from headrace.learner.models import FinalRows
    from headrace.learner.spec import check_compatible, load_spec
    from headrace.serving.relaying import RelayPolicy, RelaySettings, run_relay

    spec = load_spec(model)
    policy = RelayPolicy(interval_ms, 1000 * base_interval_s)
    form = None
    if values is not RelayedValues.ALL:
        form = FinalRows(spec, half=values is RelayedValues.HALF).form
    settings = RelaySettings(policy, metrics_port, metrics_host)
    with (
        closing(open_store(redis, spec.name, read_only=True)) as store,
        stopped_by_signals() as stop,
    ):
        check_compatible(spec, store.shape())
        with stopped_while_calls_hang(stop):
            run_relay(settings, kafka_settings(kafka, kafka_client), store, stop, form)
