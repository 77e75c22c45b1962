"""`headrace serving run`: serves predictions. Also the group of the commands."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.deploy.connections import kafka_settings
from headrace.deploy.errors import BadOption
from headrace.deploy.model_sources import deployed_model, served_models, snapshot_models
from headrace.deploy.options import (
    HOST,
    KAFKA_CLIENT,
    METRICS_HOST,
    METRICS_PORT,
    PORT,
    REDIS,
    STATUS_KAFKA,
    SpecFile,
)
from headrace.deploy.process_logs import own_formatter
from headrace.runtime.settings import same, setting
from headrace.runtime.termination import stopped_by_signals

if TYPE_CHECKING:
    from headrace.runtime.http.token_files import TokenSource
    from headrace.serving.process import ServerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRunOptions:
    """Options of `headrace serving run`."""

    model: list[SpecFile] | None = setting(None, env="HEADRACE_MODEL", metavar="FILE")
    """Model spec (TOML). Repeat to serve several models."""
    snapshot: list[str] | None = setting(
        None, env="HEADRACE_SERVING_SNAPSHOT", metavar="NAME=PLACE"
    )
    """Snapshot to serve unchanged, as the model NAME, which may differ from its own name.
    Repeatable. PLACE is a folder or URL: of one snapshot, or of several, whose newest is served.
    Needs neither Redis nor Kafka."""
    allow_module: list[str] | None = setting(
        None, env="HEADRACE_SERVING_ALLOW_MODULE", metavar="PACKAGE.FILE:CLASS"
    )
    """Torch module that the spec of a snapshot may import. Repeatable. Importing runs the module's
    code."""
    tokens: Path | None = setting(None, env="HEADRACE_SERVING_TOKENS_FILE", metavar="FILE")
    """File with the accepted tokens, one per line, each with optional limits: TOKEN name=NAME
    requests_per_second=N models=NAME,NAME. HEADRACE_SERVING_TOKENS takes tokens directly, separated
    by commas."""
    anyone: bool = setting(False, env="HEADRACE_SERVING_ANYONE")
    """Accept requests from other machines without a token. Use only behind a proxy that checks
    clients."""
    drain_ms: int = setting(0, env="HEADRACE_SERVING_DRAIN_MS", least=0)
    """Time to answer after SIGTERM, while /health/ready answers 503, in milliseconds."""
    waiting_ms: int = setting(50, env="HEADRACE_SERVING_WAITING_MS", least=1)
    """Queueing time above which a request is refused (503, Retry-After), in milliseconds."""
    most_rows: int | None = setting(None, env="HEADRACE_SERVING_MOST_ROWS", least=1_000)
    """Limit of cached rows of each model. Other rows are fetched while a request waits. Default: no
    limit."""
    miss_deadline_ms: int = setting(5, env="HEADRACE_SERVING_MISS_DEADLINE_MS", least=1)
    """With --most-rows: time a request waits for rows, in milliseconds. Then missing rows have
    their initial values, and the answer counts them."""
    alias: list[str] | None = setting(None, env="HEADRACE_SERVING_ALIAS", metavar="ALIAS=MODEL")
    """Alias of a model, such as production=news, or of models with weights, such as
    production=news=95,news-2=5. Repeatable. The model of an alias that begins with shadow scores
    the requests of other aliases without answering."""
    aliases_file: Path | None = setting(None, env="HEADRACE_SERVING_ALIASES_FILE", metavar="FILE")
    """File that keeps switched aliases across restarts."""
    admin_tokens: Path | None = setting(
        None, env="HEADRACE_SERVING_ADMIN_TOKENS_FILE", metavar="FILE"
    )
    """File with the tokens that may switch aliases, one per line, each with the optional limits of
    --tokens; models=NAME,NAME lists these aliases and their models. HEADRACE_SERVING_ADMIN_TOKENS
    takes tokens directly, separated by commas."""
    predictions_share: float = setting(
        0.0, env="HEADRACE_SERVING_PREDICTIONS_SHARE", least=0.0, most=1.0
    )
    """Share of the requests to log, with all candidates, to the topic `predictions`."""
    deployments: bool = setting(False, env="HEADRACE_SERVING_DEPLOYMENTS")
    """Load and unload models, and switch aliases, as the topic `deployments` says. Needs
    --kafka."""
    relay: bool = setting(False, env="HEADRACE_SERVING_RELAY")
    """Read the rows from the topic of `headrace serving relay` in place of the logs. Needs
    --kafka."""
    workers: int = setting(1, env="HEADRACE_SERVING_WORKERS", least=1)
    """Number of worker processes, which share one copy of the models in memory. With more than one,
    a further process follows the parameter server: its metrics are at --metrics-port, those of
    worker N at the Nth port after it."""


def run(
    options: ServingRunOptions,
    redis: str = REDIS,
    host: str = HOST,
    port: int = same(PORT, 8080),
    metrics_port: int = METRICS_PORT,
    metrics_host: str = METRICS_HOST,
    kafka: str | None = STATUS_KAFKA,
    kafka_client: list[str] | None = KAFKA_CLIENT,
) -> None:
    """Serve predictions over HTTP from models that follow the parameter server, or snapshots."""
    from headrace.serving.observers.prediction_log import PredictionLogSettings
    from headrace.serving.process import ServerSettings
    from headrace.serving.replicas.caching_follower import CacheBounds
    from headrace.serving.requests.limits import RequestLimits

    if not (options.model or options.snapshot):
        raise BadOption("expected --model / HEADRACE_MODEL or --snapshot, got neither")
    status_kafka = kafka_settings(kafka, kafka_client) if kafka else None
    if status_kafka is None:
        _refuse_without_kafka(
            predictions_share=options.predictions_share,
            deployments=options.deployments,
            relay=options.relay,
        )
    _check_workers(
        options.workers, options.most_rows, deployments=options.deployments, relay=options.relay
    )
    clients_from = token_source("HEADRACE_SERVING_TOKENS", options.tokens)
    admins_from = token_source("HEADRACE_SERVING_ADMIN_TOKENS", options.admin_tokens)
    clients, admins = clients_from.read(), admins_from.read()
    settings = ServerSettings(
        aliases=aliases_of(options.alias or ()),
        aliases_file=options.aliases_file,
        admin_tokens=[each.token for each in admins],
        admin_grants=admins,
        admin_tokens_from=admins_from,
        deployments_from=status_kafka if options.deployments else None,
        relayed_from=status_kafka if options.relay else None,
        predictions_to=status_kafka if options.predictions_share else None,
        predictions=PredictionLogSettings(share=options.predictions_share),
        host=host,
        port=port,
        tokens=[each.token for each in clients],
        grants=clients,
        tokens_from=clients_from,
        anyone=options.anyone,
        drain_ms=options.drain_ms,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        limits=RequestLimits(waiting_ms=options.waiting_ms),
        bounds=None
        if options.most_rows is None
        else CacheBounds(options.most_rows, options.miss_deadline_ms),
        told_to=status_kafka,
    )
    _serve(
        settings,
        options.model or [],
        (options.snapshot or [], options.allow_module or []),
        redis,
        options.workers,
    )


def _serve(
    settings: "ServerSettings",
    files: list[SpecFile],
    snapshots: tuple[list[str], list[str]],
    redis: str,
    workers: int,
) -> None:
    """Serve these specs and snapshots. The latter come with the modules that they may import."""
    from headrace.deploy.local.kernel_warmup import warm_server
    from headrace.serving.process import run_server
    from headrace.serving.workers.worker_supervisor import run_workers

    paths = [each.path for each in files]
    with ExitStack() as stack:
        stop = stack.enter_context(stopped_by_signals())
        if workers > 1:
            # resolve the newest snapshot once, so that a restarted worker loads the same one
            places = [f"{each.spec.name}={each.place}" for each in snapshot_models(*snapshots)]
            opened = partial(served_models, paths, places, snapshots[1], redis)
            run_workers(settings, opened, workers, stop, formatter=own_formatter())
        else:
            deploying = partial(deployed_model, snapshots[1], redis)
            for file in files:
                warm_server(file.spec)  # the first request would wait for it
            models = served_models(paths, *snapshots, redis, stack)
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
    from headrace.runtime.http.token_files import TokenSource
    from headrace.runtime.http.token_grants import plain_grants

    named = os.environ.get(variable, "")
    fixed = plain_grants(token.strip() for token in named.split(",") if token.strip())
    return TokenSource(tuple(fixed), file)
