"""`headrace serving score`: scores a stream of impressions."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.deploy.cli.options import (
    KAFKA,
    LOOPBACK,
    REDIS,
    Instance,
    KafkaAddress,
    KafkaClient,
    MetricsHost,
    MetricsPort,
    RedisUrl,
    valid_specs,
)
from headrace.deploy.errors import BadOption

if TYPE_CHECKING:
    from headrace.serving.models import SnapshotModel, StoreModel

ScoredModel = Annotated[
    Path | None,
    typer.Option(
        "--model",
        envvar="HEADRACE_MODEL",
        metavar="FILE",
        help="Model spec (TOML).",
        callback=valid_specs,
    ),
]
ScoredSnapshot = Annotated[
    str | None,
    typer.Option(
        "--snapshot",
        envvar="HEADRACE_SERVING_SNAPSHOT",
        metavar="NAME=PLACE",
        help="Snapshot to score with, as the model NAME. PLACE as for `serving run`.",
    ),
]
AllowedModules = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-module",
        envvar="HEADRACE_SERVING_ALLOW_MODULE",
        metavar="PACKAGE.FILE:CLASS",
        help="Torch module that the snapshot's spec may import. Importing runs its code.",
    ),
]
FromTopic = Annotated[
    str,
    typer.Option(
        "--from",
        envvar="HEADRACE_SCORING_FROM",
        metavar="TOPIC",
        help="Topic of impressions. Read from its beginning, each impression exactly once.",
    ),
]
ToTopic = Annotated[
    str,
    typer.Option(
        "--to",
        envvar="HEADRACE_SCORING_TO",
        metavar="TOPIC",
        help="Topic for the scores, created if missing. Default: scored.MODEL.",
        show_default=False,
    ),
]
MostRows = Annotated[
    int | None,
    typer.Option(
        "--most-rows",
        envvar="HEADRACE_SERVING_MOST_ROWS",
        min=1_000,
        help="Limit of rows in memory. Other rows are fetched. Default: no limit.",
    ),
]
MissDeadlineMs = Annotated[
    int,
    typer.Option(
        "--miss-deadline-ms",
        envvar="HEADRACE_SCORING_MISS_DEADLINE_MS",
        min=1,
        help="With --most-rows: deadline for fetching rows, in milliseconds.",
    ),
]

ScoreAgain = Annotated[
    bool,
    typer.Option(
        "--score-again",
        help="Score from the first impression if Kafka has forgotten the scorer's offsets and "
        "scores exist. Writes them a second time.",
    ),
]


def score(
    kafka: KafkaAddress = KAFKA,
    model: ScoredModel = None,
    snapshot: ScoredSnapshot = None,
    allow_module: AllowedModules = None,
    redis: RedisUrl = REDIS,
    impressions: FromTopic = "impressions",
    scores: ToTopic = "",
    instance: Instance = "",
    most_rows: MostRows = None,
    miss_deadline_ms: MissDeadlineMs = 5_000,
    score_again: ScoreAgain = False,
    metrics_port: MetricsPort = 0,
    metrics_host: MetricsHost = LOOPBACK,
    kafka_client: KafkaClient = None,
) -> None:
    """Score the impressions of a topic into another topic, exactly once, until stopped."""
    from headrace.deploy.connections import kafka_settings
    from headrace.deploy.termination import stopped_by_signals, stopped_while_calls_hang
    from headrace.serving.replicas import CacheBounds
    from headrace.serving.scoring import ScoringSettings, run_scoring

    settings = ScoringSettings(
        instance=instance,
        impressions=impressions,
        scores=scores,
        score_again=score_again,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        bounds=None if most_rows is None else CacheBounds(most_rows, miss_deadline_ms),
    )
    with ExitStack() as stack:
        at = _model_at(stack, model, snapshot, allow_module or [], redis)
        stop = stack.enter_context(stopped_by_signals())
        stack.enter_context(stopped_while_calls_hang(stop))
        run_scoring(settings, kafka_settings(kafka, kafka_client), at, stop)


def _model_at(
    stack: ExitStack, model: Path | None, snapshot: str | None, modules: list[str], redis: str
) -> "StoreModel | SnapshotModel":
    from headrace.deploy.model_sources import frozen, opened

    models: list[StoreModel | SnapshotModel] = [
        *opened(stack, [model] if model else [], redis),
        *frozen([snapshot] if snapshot else [], modules),
    ]
    if len(models) != 1:
        got = "both" if models else "neither"
        raise BadOption(f"expected --model / HEADRACE_MODEL or --snapshot, got {got}")
    return models[0]
