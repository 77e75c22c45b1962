"""`headrace learner`: learns from examples and pushes updates to the parameter server."""

import json
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import click

from headrace.deploy.connections import open_store
from headrace.deploy.errors import BadOption
from headrace.deploy.options import (
    INSTANCE,
    METRICS_HOST,
    METRICS_PORT,
    MODEL,
    REDIS,
    SKIP_DAMAGED,
    KafkaOptions,
    SpecFile,
)
from headrace.runtime.settings import setting
from headrace.runtime.termination import stopped_by_signals

EXAMPLES_OF = setting(
    "",
    "Model whose examples to learn, with the same fields and label: for a copy restored "
    "under another name. Default: the model itself.",
    env="HEADRACE_EXAMPLES_OF",
    metavar="NAME",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerRunOptions:
    """Options of `headrace learner run`."""

    accept_topic: str = setting("", env="HEADRACE_ACCEPT_TOPIC", metavar="ID")
    """Id of the topic of examples, to accept it after it was deleted and recreated."""
    accept_gap: bool = setting(False, env="HEADRACE_ACCEPT_GAP")
    """Skip examples that Kafka deleted or lost before they were learned."""
    push_every: str = setting("", env="HEADRACE_PUSH_EVERY", metavar="BOUND")
    """Limit of what a learner learns between two pushes: `batch`, a number of examples (`20000`) or
    a time (`50ms`). Default: 50ms, and up to 400ms while batches queue and no other learner
    pushes."""
    most_rows: int | None = setting(None, env="HEADRACE_LEARNER_MOST_ROWS", least=1)
    """Limit of rows in memory. Other rows are fetched when a batch needs them. The learned model is
    the same, but learning is slower. Default: no limit."""
    evidence: float = setting(20.0, env="HEADRACE_EVIDENCE", least=5.0)
    """A batch is suspect once a fault explains the stream e^NUMBER times better than good traffic
    does. `inf`: never. Batches with NaN, infinite or exploding values are always quarantined."""
    rank: int | None = setting(None, env="RANK", least=0)
    """With `synchronous` in the spec: number of this learner, from 0. torchrun sets this and the
    next three."""
    world_size: int = setting(1, env="WORLD_SIZE", least=1)
    """Number of learners."""
    master_addr: str = setting("127.0.0.1", env="MASTER_ADDR")
    """Host of the first learner."""
    master_port: int = setting(29_500, env="MASTER_PORT", least=1, most=65535)
    """Port on that host."""
    agent_store: bool = setting(False, env="TORCHELASTIC_USE_AGENT_STORE", hidden=True)
    attempt: str = setting("0", env="TORCHELASTIC_RESTART_COUNT", hidden=True)


def run(
    options: LearnerRunOptions,
    kafka: KafkaOptions,
    model: SpecFile = MODEL,
    redis: str = REDIS,
    instance: str = INSTANCE,
    metrics_port: int = METRICS_PORT,
    metrics_host: str = METRICS_HOST,
    skip_damaged: list[str] | None = SKIP_DAMAGED,
    examples_of: str = EXAMPLES_OF,
) -> None:
    """Learn from the topic of examples and push updates to the parameter server, until stopped."""
    from headrace.deploy.local.kernel_warmup import warm_learner
    from headrace.learner.loop.guard.stream_change import GuardLimits
    from headrace.learner.loop.guard.surprise import SurpriseLimits
    from headrace.learner.loop.pacing import BadPushInterval, LearnerPacing, parse_push_interval
    from headrace.learner.process import LearnerSettings, run_learner

    try:
        pace = LearnerPacing(staleness=parse_push_interval(options.push_every))
    except BadPushInterval as error:
        raise BadOption(f"--push-every / HEADRACE_PUSH_EVERY: {error}") from error
    spec, place = model.spec, None
    if spec.structure.synchronous and options.rank is not None:
        from headrace.learner.models.deep.process_group import GroupConfig

        place = GroupConfig(
            options.rank,
            options.world_size,
            options.master_addr,
            options.master_port,
            options.agent_store,
            options.attempt,
        )
    with stopped_by_signals() as stop:
        warm_learner(spec)
        run_learner(
            LearnerSettings(
                instance=instance,
                metrics_port=metrics_port,
                metrics_host=metrics_host,
                pace=pace,
                limits=GuardLimits(SurpriseLimits(options.evidence)),
                accept_topic=options.accept_topic,
                accept_gap=options.accept_gap,
                skip_damaged=tuple(skip_damaged or ()),
                examples_of=examples_of,
                most_rows=options.most_rows,
                place=place,
            ),
            kafka.settings(),
            partial(open_store, redis, spec.name),
            spec,
            stop,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerParkedOptions:
    """Options of `headrace learner parked`."""

    learn: list[str] | None = setting(None, metavar="PLACE")
    """Learn a parked message, given as PARTITION@OFFSET; `all`: each. Repeatable."""
    drop: list[str] | None = setting(None, metavar="PLACE")
    """Never learn a parked message, and write a dead letter. Repeatable."""
    as_json: bool = setting(False, flag="--json")
    """Print JSON."""


def parked(
    options: LearnerParkedOptions,
    model: SpecFile = MODEL,
    redis: str = REDIS,
) -> None:
    """Show the messages of examples that the batch guard parked, or decide to learn or drop some.

    The learner of the partition follows within seconds, or when it starts.
    """
    from headrace.deploy.operations.parked import ask_about, parked_text
    from headrace.learner.loop.marks.parked_marks import ParkedRequest
    from headrace.learner.loop.marks.parked_requests import read_parked

    read_only = not (options.learn or options.drop)
    with closing(open_store(redis, model.spec.name, read_only=read_only)) as store:
        ask_about(store, options.learn or [], ParkedRequest.LEARN)
        ask_about(store, options.drop or [], ParkedRequest.DROP)
        found = read_parked(store)
        buckets = store.shape().buckets
    if options.as_json:
        click.echo(json.dumps([each.described() for each in found], indent=2))
    else:
        click.echo(parked_text(found, buckets))
