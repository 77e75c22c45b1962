"""`headrace serving run`: serves predictions. Also the group of the commands."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.deploy.cli.options import (
    LOOPBACK,
    REDIS,
    Host,
    KafkaClient,
    MetricsHost,
    MetricsPort,
    Port,
    RedisUrl,
    StatusKafka,
    valid_specs,
)
from headrace.deploy.cli.serving.serving_aliases import alias
from headrace.deploy.cli.serving.serving_deployments import deploy, deployments, undeploy
from headrace.deploy.cli.serving.serving_relay import relay as relay_logs
from headrace.deploy.cli.serving.serving_score import score
from headrace.deploy.errors import BadOption
from headrace.deploy.model_sources import both, deployed, frozen

if TYPE_CHECKING:
    from headrace.ingest.http import TokenSource
    from headrace.serving import ServerSettings

app = typer.Typer(help="Serve predictions.", no_args_is_help=True)
app.command()(score)
app.command("relay")(relay_logs)
app.command()(alias)
app.command()(deploy)
app.command()(undeploy)
app.command()(deployments)


@app.callback()
def _group() -> None:
    pass


ModelFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--model",
        envvar="HEADRACE_MODEL",
        metavar="FILE",
        help="Model spec (TOML). Repeat to serve several models.",
        show_default=False,
        callback=valid_specs,
    ),
]
SnapshotPlaces = Annotated[
    list[str] | None,
    typer.Option(
        "--snapshot",
        envvar="HEADRACE_SERVING_SNAPSHOT",
        metavar="NAME=PLACE",
        help="Snapshot to serve unchanged, as the model NAME, which may differ from its own name. "
        "Repeatable. PLACE is a folder or URL: of one snapshot, or of several, whose newest is "
        "served. Needs neither Redis nor Kafka.",
    ),
]
AllowedModules = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-module",
        envvar="HEADRACE_SERVING_ALLOW_MODULE",
        metavar="PACKAGE.FILE:CLASS",
        help="Torch module that the spec of a snapshot may import. Repeatable. Importing runs the "
        "module's code.",
    ),
]
TokensFile = Annotated[
    Path | None,
    typer.Option(
        "--tokens",
        envvar="HEADRACE_SERVING_TOKENS_FILE",
        metavar="FILE",
        help="File with the accepted tokens, one per line, each with optional limits: TOKEN "
        "name=NAME requests_per_second=N models=NAME,NAME. HEADRACE_SERVING_TOKENS takes tokens "
        "directly, separated by commas.",
    ),
]
Anyone = Annotated[
    bool,
    typer.Option(
        "--anyone",
        envvar="HEADRACE_SERVING_ANYONE",
        help="Accept requests from other machines without a token. Use only behind a proxy "
        "that checks clients.",
    ),
]
DrainMs = Annotated[
    int,
    typer.Option(
        "--drain-ms",
        envvar="HEADRACE_SERVING_DRAIN_MS",
        min=0,
        help="Time to answer after SIGTERM, while /health/ready answers 503, in milliseconds.",
    ),
]
WaitingMs = Annotated[
    int,
    typer.Option(
        "--waiting-ms",
        envvar="HEADRACE_SERVING_WAITING_MS",
        min=1,
        help="Queueing time above which a request is refused (503, Retry-After), in milliseconds.",
    ),
]
FirstAliases = Annotated[
    list[str] | None,
    typer.Option(
        "--alias",
        envvar="HEADRACE_SERVING_ALIAS",
        metavar="ALIAS=MODEL",
        help="Alias of a model, such as production=news, or of models with weights, such as "
        "production=news=95,news-2=5. Repeatable. The model of an alias that begins with shadow "
        "scores the requests of other aliases without answering.",
    ),
]
AliasesFile = Annotated[
    Path | None,
    typer.Option(
        "--aliases-file",
        envvar="HEADRACE_SERVING_ALIASES_FILE",
        metavar="FILE",
        help="File that keeps switched aliases across restarts.",
    ),
]
AdminTokensFile = Annotated[
    Path | None,
    typer.Option(
        "--admin-tokens",
        envvar="HEADRACE_SERVING_ADMIN_TOKENS_FILE",
        metavar="FILE",
        help="File with the tokens that may switch aliases, one per line, each with the optional "
        "limits of --tokens; models=NAME,NAME lists these aliases and their models. "
        "HEADRACE_SERVING_ADMIN_TOKENS takes tokens directly, separated by commas.",
    ),
]
FollowDeployments = Annotated[
    bool,
    typer.Option(
        "--deployments",
        envvar="HEADRACE_SERVING_DEPLOYMENTS",
        help="Load and unload models, and switch aliases, as the topic `deployments` says. Needs "
        "--kafka.",
    ),
]
PredictionsShare = Annotated[
    float,
    typer.Option(
        "--predictions-share",
        envvar="HEADRACE_SERVING_PREDICTIONS_SHARE",
        min=0.0,
        max=1.0,
        help="Share of the requests to log, with all candidates, to the topic `predictions`.",
    ),
]
FromRelay = Annotated[
    bool,
    typer.Option(
        "--relay",
        envvar="HEADRACE_SERVING_RELAY",
        help="Read the rows from the topic of `headrace serving relay` in place of the logs. Needs "
        "--kafka.",
    ),
]

MostRows = Annotated[
    int | None,
    typer.Option(
        "--most-rows",
        envvar="HEADRACE_SERVING_MOST_ROWS",
        min=1_000,
        help="Limit of cached rows of each model. Other rows are fetched while a request waits. "
        "Default: no limit.",
    ),
]
MissDeadlineMs = Annotated[
    int,
    typer.Option(
        "--miss-deadline-ms",
        envvar="HEADRACE_SERVING_MISS_DEADLINE_MS",
        min=1,
        help="With --most-rows: time a request waits for rows, in milliseconds. Then missing rows "
        "have their initial values, and the answer counts them.",
    ),
]
Workers = Annotated[
    int,
    typer.Option(
        "--workers",
        envvar="HEADRACE_SERVING_WORKERS",
        min=1,
        help="Number of worker processes, which share one copy of the models in memory. With more "
        "than one, a further process follows the parameter server: its metrics are at "
        "--metrics-port, those of worker N at the Nth port after it.",
    ),
]


@app.command()
def run(
    model: ModelFiles = None,
    snapshot: SnapshotPlaces = None,
    allow_module: AllowedModules = None,
    redis: RedisUrl = REDIS,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    tokens: TokensFile = None,
    anyone: Anyone = False,
    drain_ms: DrainMs = 0,
    waiting_ms: WaitingMs = 50,
    most_rows: MostRows = None,
    miss_deadline_ms: MissDeadlineMs = 5,
    metrics_port: MetricsPort = 0,
    metrics_host: MetricsHost = LOOPBACK,
    alias: FirstAliases = None,
    aliases_file: AliasesFile = None,
    admin_tokens: AdminTokensFile = None,
    predictions_share: PredictionsShare = 0.0,
    deployments: FollowDeployments = False,
    relay: FromRelay = False,
    workers: Workers = 1,
    kafka: StatusKafka = None,
    kafka_client: KafkaClient = None,
) -> None:
    """Serve predictions over HTTP from models that follow the parameter server, or snapshots."""
    from headrace.deploy.connections import kafka_settings
    from headrace.serving import ServerSettings
    from headrace.serving.observers import PredictionLogSettings
    from headrace.serving.replicas import CacheBounds
    from headrace.serving.requests import RequestLimits

    if not (model or snapshot):
        raise BadOption("expected --model / HEADRACE_MODEL or --snapshot, got neither")
    status_kafka = kafka_settings(kafka, kafka_client) if kafka else None
    if status_kafka is None:
        _refuse_without_kafka(
            predictions_share=predictions_share, deployments=deployments, relay=relay
        )
    _check_workers(workers, most_rows, deployments=deployments, relay=relay)
    clients_from = token_source("HEADRACE_SERVING_TOKENS", tokens)
    admins_from = token_source("HEADRACE_SERVING_ADMIN_TOKENS", admin_tokens)
    clients, admins = clients_from.read(), admins_from.read()
    settings = ServerSettings(
        aliases=aliases_of(alias or ()),
        aliases_file=aliases_file,
        admin_tokens=[each.token for each in admins],
        admin_grants=admins,
        admin_tokens_from=admins_from,
        deployments_from=status_kafka if deployments else None,
        relayed_from=status_kafka if relay else None,
        predictions_to=status_kafka if predictions_share else None,
        predictions=PredictionLogSettings(share=predictions_share),
        host=host,
        port=port,
        tokens=[each.token for each in clients],
        grants=clients,
        tokens_from=clients_from,
        anyone=anyone,
        drain_ms=drain_ms,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        limits=RequestLimits(waiting_ms=waiting_ms),
        bounds=None if most_rows is None else CacheBounds(most_rows, miss_deadline_ms),
        told_to=status_kafka,
    )
    _serve(settings, model or [], (snapshot or [], allow_module or []), redis, workers)


def _serve(
    settings: "ServerSettings",
    files: list[Path],
    snapshots: tuple[list[str], list[str]],
    redis: str,
    workers: int,
) -> None:
    """Serve these specs and snapshots. The latter come with the modules that they may import."""
    from headrace.deploy.local import warm_server
    from headrace.deploy.termination import stopped_by_signals
    from headrace.learner.spec import load_spec
    from headrace.serving import run_server
    from headrace.serving.workers import run_workers

    with ExitStack() as stack:
        stop = stack.enter_context(stopped_by_signals())
        if workers > 1:
            # resolve the newest snapshot once, so that a restarted worker loads the same one
            places = [f"{each.spec.name}={each.place}" for each in frozen(*snapshots)]
            opened = partial(both, files, places, snapshots[1], redis)
            run_workers(settings, opened, workers, stop)
        else:
            deploying = partial(deployed, snapshots[1], redis)
            for file in files:
                warm_server(load_spec(file))  # the first request would wait for it
            models = both(files, *snapshots, redis, stack)
            run_server(settings, models, stop, deploying=deploying)


def _refuse_without_kafka(**options: float) -> None:
    for name, given in options.items():
        if given:
            flag = f"--{name.replace('_', '-')} / HEADRACE_SERVING_{name.upper()}"
            raise BadOption(f"{flag}: expected --kafka / HEADRACE_KAFKA as well, got none")


def _check_workers(workers: int, most_rows: int | None, *, deployments: bool, relay: bool) -> None:
    """Raise BadOption for options that need one process, or exclude each other."""
    option = "--workers / HEADRACE_SERVING_WORKERS"
    if most_rows is not None and workers > 1:
        raise BadOption(
            f"{option}: expected 1 with --most-rows, because each process would cache the rows of "
            f"its own requests, got {workers}"
        )
    if deployments and workers > 1:
        raise BadOption(
            f"{option}: expected 1 with --deployments, got {workers}: start several servers"
        )
    if relay and most_rows is not None:
        raise BadOption(
            "--most-rows / HEADRACE_SERVING_MOST_ROWS: expected none with --relay, because a relay "
            f"has no rows to fetch, got {most_rows}"
        )


def aliases_of(given: Sequence[str]) -> dict[str, str]:
    """Return alias -> model. Raises BadOption."""
    pairs = [each.partition("=") for each in given]
    for name, equals, model in pairs:
        if not (name and equals and model):
            raise BadOption(f"--alias / HEADRACE_SERVING_ALIAS: expected ALIAS=MODEL, got {name!r}")
    return {name: model for name, _, model in pairs}


def token_source(variable: str, file: Path | None) -> "TokenSource":
    """Return the tokens of a variable, without limits, and of a file, with its limits."""
    from headrace.ingest.http import TokenSource, plain_grants

    named = os.environ.get(variable, "")
    fixed = plain_grants(token.strip() for token in named.split(",") if token.strip())
    return TokenSource(tuple(fixed), file)
