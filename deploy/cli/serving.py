"""`headrace serving`: answer requests, and choose which model answers."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from headrace.deploy.cli.model_sources import both, frozen
from headrace.deploy.cli.options import (
    REDIS,
    Host,
    KafkaClient,
    MetricsPort,
    Port,
    RedisUrl,
    ToldTo,
)
from headrace.deploy.cli.serving_score import score
from headrace.deploy.errors import BadOption

app = typer.Typer(help="Answer requests.", no_args_is_help=True)
app.command()(score)


@app.callback()
def _group() -> None:
    pass


ModelFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--model",
        envvar="HEADRACE_MODEL",
        metavar="FILE",
        help="The model spec (TOML); may be repeated: one server, many models.",
        show_default=False,
    ),
]
SnapshotPlaces = Annotated[
    list[str] | None,
    typer.Option(
        "--snapshot",
        envvar="HEADRACE_SERVING_SNAPSHOT",
        metavar="NAME=PLACE",
        help="Serve a snapshot as it is, as the model NAME; may be repeated. PLACE is a folder or "
        "URL of snapshots, whose newest is meant, or of one of them. Asks neither Redis nor Kafka.",
    ),
]
TokensFile = Annotated[
    Path | None,
    typer.Option(
        "--tokens",
        envvar="HEADRACE_SERVING_TOKENS_FILE",
        metavar="FILE",
        help="Who may ask: tokens, one a line. Or HEADRACE_SERVING_TOKENS holds the tokens "
        "themselves, with commas between.",
    ),
]
Anyone = Annotated[
    bool,
    typer.Option(
        "--anyone",
        envvar="HEADRACE_SERVING_ANYONE",
        help="Listen to other machines without tokens: something in front checks.",
    ),
]
DrainMs = Annotated[
    int,
    typer.Option(
        "--drain-ms",
        envvar="HEADRACE_SERVING_DRAIN_MS",
        min=0,
        help="How long to go on answering when told to stop, while /health/ready says no.",
    ),
]
WaitingMs = Annotated[
    int,
    typer.Option(
        "--waiting-ms",
        envvar="HEADRACE_SERVING_WAITING_MS",
        min=1,
        help="Refuse requests (503, Retry-After) that would wait for longer.",
    ),
]
FirstAliases = Annotated[
    list[str] | None,
    typer.Option(
        "--alias",
        envvar="HEADRACE_SERVING_ALIAS",
        metavar="ALIAS=MODEL",
        help="A name that stands for a model, such as production=news; may be repeated. One that "
        "begins with shadow scores what other aliases answer, beside the answers.",
    ),
]
AliasesFile = Annotated[
    Path | None,
    typer.Option(
        "--aliases-file",
        envvar="HEADRACE_SERVING_ALIASES_FILE",
        metavar="FILE",
        help="Keep aliases that are switched here, so that they outlive the server.",
    ),
]
AdminTokensFile = Annotated[
    Path | None,
    typer.Option(
        "--admin-tokens",
        envvar="HEADRACE_SERVING_ADMIN_TOKENS_FILE",
        metavar="FILE",
        help="Who may switch aliases: tokens, one a line. Or HEADRACE_SERVING_ADMIN_TOKENS holds "
        "the tokens themselves, with commas between.",
    ),
]
PredictionsShare = Annotated[
    float,
    typer.Option(
        "--predictions-share",
        envvar="HEADRACE_SERVING_PREDICTIONS_SHARE",
        min=0.0,
        max=1.0,
        help="Log this share of the requests, with all their candidates, to the topic predictions.",
    ),
]


MostRows = Annotated[
    int | None,
    typer.Option(
        "--most-rows",
        envvar="HEADRACE_SERVING_MOST_ROWS",
        min=1_000,
        help="Hold at most so many rows of each model, those asked for lately, and fetch others "
        "while a request waits. Default: hold all of them.",
    ),
]
MissDeadlineMs = Annotated[
    int,
    typer.Option(
        "--miss-deadline-ms",
        envvar="HEADRACE_SERVING_MISS_DEADLINE_MS",
        min=1,
        help="With --most-rows: how long a request waits for rows; then it is answered as if they "
        "had not learned anything, and says how many they were.",
    ),
]
Workers = Annotated[
    int,
    typer.Option(
        "--workers",
        envvar="HEADRACE_SERVING_WORKERS",
        min=1,
        help="Answer with so many processes, which share one copy of the models in memory. With "
        "more than one another follows the logs for all, and its metrics are at --metrics-port, "
        "those of worker N at the Nth port after it.",
    ),
]


@app.command()
def run(
    model: ModelFiles = None,
    snapshot: SnapshotPlaces = None,
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
    alias: FirstAliases = None,
    aliases_file: AliasesFile = None,
    admin_tokens: AdminTokensFile = None,
    predictions_share: PredictionsShare = 0.0,
    workers: Workers = 1,
    kafka: ToldTo = None,
    kafka_client: KafkaClient = None,
) -> None:
    """Answer requests over HTTP from models that follow the parameter server, or from snapshots."""
    from headrace.deploy.connections import kafka_settings
    from headrace.deploy.termination import stopped_by_signals
    from headrace.serving import ServerSettings, run_server
    from headrace.serving.observers import PredictionLogSettings
    from headrace.serving.replicas import CacheBounds
    from headrace.serving.requests import RequestLimits
    from headrace.serving.workers import run_workers

    if not (model or snapshot):
        raise BadOption("expected --model / HEADRACE_MODEL or --snapshot, found neither")
    told_to = kafka_settings(kafka, kafka_client) if kafka else None
    if predictions_share and told_to is None:
        raise BadOption(
            "--predictions-share / HEADRACE_SERVING_PREDICTIONS_SHARE: expected --kafka / "
            "HEADRACE_KAFKA beside it, found none"
        )
    if most_rows is not None and workers > 1:
        raise BadOption(
            "--workers / HEADRACE_SERVING_WORKERS: expected 1 beside --most-rows, for which rows "
            f"are held is what one process is asked for, found {workers}"
        )
    settings = ServerSettings(
        aliases=aliases_of(alias or ()),
        aliases_file=aliases_file,
        admin_tokens=tokens_of("HEADRACE_SERVING_ADMIN_TOKENS", admin_tokens),
        predictions_to=told_to if predictions_share else None,
        predictions=PredictionLogSettings(share=predictions_share),
        host=host,
        port=port,
        tokens=tokens_of("HEADRACE_SERVING_TOKENS", tokens),
        anyone=anyone,
        drain_ms=drain_ms,
        metrics_port=metrics_port,
        limits=RequestLimits(waiting_ms=waiting_ms),
        bounds=None if most_rows is None else CacheBounds(most_rows, miss_deadline_ms),
        told_to=told_to,
    )
    with ExitStack() as stack:
        stop = stack.enter_context(stopped_by_signals())
        if workers > 1:
            # the newest snapshot now is the one to be served, whoever has to load it again
            places = [f"{each.spec.name}={each.place}" for each in frozen(snapshot or [])]
            run_workers(settings, partial(both, model or [], places, redis), workers, stop)
        else:
            run_server(settings, both(model or [], snapshot or [], redis, stack), stop)


@app.command()
def alias(
    name: Annotated[str, typer.Argument(metavar="[ALIAS]", help="Which; none: show all.")] = "",
    model: Annotated[
        str, typer.Argument(metavar="[MODEL]", help="What it is to be; none: show it.")
    ] = "",
    server: Annotated[
        list[str],
        typer.Option(
            "--server",
            envvar="HEADRACE_SERVING_URL",
            metavar="URL",
            help="The server, or several, one after another.",
        ),
    ] = ["http://127.0.0.1:8080"],  # noqa: B006 - typer copies it
    expected: Annotated[
        str | None,
        typer.Option("--expected", metavar="MODEL", help="Refuse unless it is this model now."),
    ] = None,
    revert: Annotated[
        bool, typer.Option("--revert", help="Back to the model that it was before.")
    ] = False,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            envvar="HEADRACE_SERVING_ADMIN_TOKEN_FILE",
            metavar="FILE",
            help="A file with an admin token.",
        ),
    ] = None,
) -> None:
    """Show the aliases of servers, let one be another model, or take that back."""
    from headrace.deploy.operations import change_alias, show_aliases
    from headrace.ingest.http import read_tokens

    token = read_tokens(token_file)[0] if token_file else ""
    for each in server:
        if revert or model:
            typer.echo(change_alias(each, token, name, None if revert else model, expected))
        else:
            for line in show_aliases(each, name):
                typer.echo(line)


def aliases_of(given: Sequence[str]) -> dict[str, str]:
    """Return alias -> model. Raises BadOption."""
    pairs = [each.partition("=") for each in given]
    for name, equals, model in pairs:
        if not (name and equals and model):
            raise BadOption(
                f"--alias / HEADRACE_SERVING_ALIAS: expected ALIAS=MODEL, found {name!r}"
            )
    return {name: model for name, _, model in pairs}


def tokens_of(variable: str, file: Path | None) -> list[str]:
    """Return the tokens of a variable, with commas between, and of a file, one a line."""
    from headrace.ingest.http import read_tokens

    named = os.environ.get(variable, "")
    good = [token.strip() for token in named.split(",") if token.strip()]
    return good if file is None else good + read_tokens(file)
