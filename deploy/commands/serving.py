"""`headrace serving`: answer requests."""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.commands.options import (
    REDIS,
    Host,
    KafkaClient,
    MetricsPort,
    Port,
    RedisUrl,
    ToldTo,
)

if TYPE_CHECKING:
    from serving.process import ModelAt

app = typer.Typer(help="Answer requests.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    pass


ModelFiles = Annotated[
    list[Path],
    typer.Option(
        "--model",
        envvar="HEADRACE_MODEL",
        metavar="FILE",
        help="The model spec (TOML); may be repeated: one server, many models.",
        show_default=False,
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


@app.command()
def run(
    model: ModelFiles,
    redis: RedisUrl = REDIS,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    tokens: TokensFile = None,
    anyone: Anyone = False,
    drain_ms: DrainMs = 0,
    waiting_ms: WaitingMs = 50,
    metrics_port: MetricsPort = 0,
    kafka: ToldTo = None,
    kafka_client: KafkaClient = None,
) -> None:
    """Follow models in the parameter server and answer requests over HTTP, until stopped."""
    from deploy.commands.building import kafka_settings
    from deploy.signals import stopped_by_signals
    from serving.api.limits import Limits
    from serving.process import ServerSettings, run_server

    settings = ServerSettings(
        host=host,
        port=port,
        tokens=tokens_of("HEADRACE_SERVING_TOKENS", tokens),
        anyone=anyone,
        drain_ms=drain_ms,
        metrics_port=metrics_port,
        limits=Limits(waiting_ms=waiting_ms),
        told_to=kafka_settings(kafka, kafka_client) if kafka else None,
    )
    with ExitStack() as stack:
        models = opened(stack, model, redis)
        stop = stack.enter_context(stopped_by_signals())
        run_server(settings, models, stop)


def opened(stack: ExitStack, files: list[Path], redis: str) -> list["ModelAt"]:
    """Return the models of these specs with their stores, which `stack` closes."""
    from deploy.commands.building import open_store
    from learner.spec import load_spec
    from serving.process import ModelAt

    made = []
    for each in files:
        spec = load_spec(each)
        store = open_store(redis, spec.name, read_only=True)
        stack.callback(store.close)
        made.append(ModelAt(spec, store))
    return made


def tokens_of(variable: str, file: Path | None) -> list[str]:
    """Return the tokens of a variable, with commas between, and of a file, one a line."""
    from ingest.collector.tokens import read_tokens

    named = os.environ.get(variable, "")
    good = [token.strip() for token in named.split(",") if token.strip()]
    return good if file is None else good + read_tokens(file)
