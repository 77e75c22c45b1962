"""`headrace serving score`: scores a stream of impressions."""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.deploy.errors import BadOption
from headrace.deploy.model_sources import snapshot_models, store_model
from headrace.deploy.options import (
    INSTANCE,
    METRICS_HOST,
    METRICS_PORT,
    REDIS,
    KafkaOptions,
    SpecFile,
)
from headrace.runtime.settings import setting
from headrace.runtime.termination import stopped_by_signals, stopped_while_calls_hang

if TYPE_CHECKING:
    from headrace.serving.models.loading import SnapshotModel, StoreModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingScoreOptions:
    """Options of `headrace serving score`."""

    model: SpecFile | None = setting(None, env="HEADRACE_MODEL", metavar="FILE")
    """Model spec (TOML)."""
    snapshot: str | None = setting(None, env="HEADRACE_SERVING_SNAPSHOT", metavar="NAME=PLACE")
    """Snapshot to score with, as the model NAME. PLACE as for `serving run`."""
    allow_module: list[str] | None = setting(
        None, env="HEADRACE_SERVING_ALLOW_MODULE", metavar="PACKAGE.FILE:CLASS"
    )
    """Torch module that the snapshot's spec may import. Importing runs its code."""
    impressions: str = setting(
        "impressions", env="HEADRACE_SCORING_FROM", metavar="TOPIC", flag="--from"
    )
    """Topic of impressions. Read from its beginning, each impression exactly once."""
    scores: str = setting("", env="HEADRACE_SCORING_TO", metavar="TOPIC", flag="--to")
    """Topic for the scores, created if missing. Default: scored.MODEL."""
    most_rows: int | None = setting(None, env="HEADRACE_SERVING_MOST_ROWS", least=1_000)
    """Limit of rows in memory. Other rows are fetched. Default: no limit."""
    miss_deadline_ms: int = setting(5_000, env="HEADRACE_SCORING_MISS_DEADLINE_MS", least=1)
    """With --most-rows: deadline for fetching rows, in milliseconds."""
    score_again: bool = setting(False)
    """Score from the first impression if Kafka has forgotten the scorer's offsets and scores exist.
    Writes them a second time."""


def score(
    options: ServingScoreOptions,
    kafka: KafkaOptions,
    redis: str = REDIS,
    instance: str = INSTANCE,
    metrics_port: int = METRICS_PORT,
    metrics_host: str = METRICS_HOST,
) -> None:
    """Score the impressions of a topic into another topic, exactly once, until stopped."""
    from headrace.serving.replicas.caching_follower import CacheBounds
    from headrace.serving.scoring.scoring_process import ScoringSettings, run_scoring

    settings = ScoringSettings(
        instance=instance,
        impressions=options.impressions,
        scores=options.scores,
        score_again=options.score_again,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        bounds=None
        if options.most_rows is None
        else CacheBounds(options.most_rows, options.miss_deadline_ms),
    )
    with ExitStack() as stack:
        at = _model_at(stack, options.model, options.snapshot, options.allow_module or [], redis)
        stop = stack.enter_context(stopped_by_signals())
        stack.enter_context(stopped_while_calls_hang(stop))
        run_scoring(settings, kafka.settings(), at, stop)


def _model_at(
    stack: ExitStack, model: SpecFile | None, snapshot: str | None, modules: list[str], redis: str
) -> "StoreModel | SnapshotModel":
    if model and not snapshot:
        return store_model(model.spec, redis, stack)
    if snapshot and not model:
        [found] = snapshot_models([snapshot], modules)
        return found
    got = "both" if model else "neither"
    raise BadOption(f"expected --model / HEADRACE_MODEL or --snapshot, got {got}")
