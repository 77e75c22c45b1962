"""`headrace learner`: learns from examples and pushes updates to the parameter server."""

import json
from contextlib import closing
from functools import partial
from typing import Annotated

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
    ModelFile,
    RedisUrl,
    SkipDamaged,
)
from headrace.deploy.errors import BadOption

AcceptTopic = Annotated[
    str,
    typer.Option(
        "--accept-topic",
        envvar="HEADRACE_ACCEPT_TOPIC",
        metavar="ID",
        help="Id of the topic of examples, to accept it after it was deleted and recreated.",
        show_default=False,
    ),
]

AcceptGap = Annotated[
    bool,
    typer.Option(
        "--accept-gap",
        envvar="HEADRACE_ACCEPT_GAP",
        help="Skip examples that Kafka deleted before they were learned, and count them.",
        show_default=False,
    ),
]

ExamplesOf = Annotated[
    str,
    typer.Option(
        "--examples-of",
        envvar="HEADRACE_EXAMPLES_OF",
        metavar="NAME",
        help="Model whose examples to learn, with the same fields and label: for a copy restored "
        "under another name. Default: the model itself.",
        show_default=False,
    ),
]

PushEvery = Annotated[
    str,
    typer.Option(
        "--push-every",
        envvar="HEADRACE_PUSH_EVERY",
        metavar="BOUND",
        help="Limit of what a learner learns between two pushes: `batch`, a number of examples "
        "(`20000`) or a time (`50ms`). Default: 50ms, and up to 400ms while batches queue and no "
        "other learner pushes.",
        show_default=False,
    ),
]

MostRows = Annotated[
    int | None,
    typer.Option(
        "--most-rows",
        envvar="HEADRACE_LEARNER_MOST_ROWS",
        min=1,
        help="Limit of rows in memory. Other rows are fetched when a batch needs them. The learned "
        "model is the same, but learning is slower. Default: no limit.",
        show_default=False,
    ),
]

Evidence = Annotated[
    float,
    typer.Option(
        "--evidence",
        envvar="HEADRACE_EVIDENCE",
        min=5.0,
        help="A batch is suspect once a fault explains the stream e^NUMBER times better than good "
        "traffic does. `inf`: never. Batches with NaN, infinite or exploding values are always "
        "quarantined.",
    ),
]

Rank = Annotated[
    int | None,
    typer.Option(
        "--rank",
        envvar="RANK",
        min=0,
        help="With `synchronous` in the spec: number of this learner, from 0. torchrun sets this "
        "and the next three.",
        show_default=False,
    ),
]
WorldSize = Annotated[
    int, typer.Option("--world-size", envvar="WORLD_SIZE", min=1, help="Number of learners.")
]
MasterHost = Annotated[
    str, typer.Option("--master-addr", envvar="MASTER_ADDR", help="Host of the first learner.")
]
MasterPort = Annotated[
    int,
    typer.Option(
        "--master-port", envvar="MASTER_PORT", min=1, max=65535, help="Port on that host."
    ),
]
AgentStore = Annotated[bool, typer.Option(envvar="TORCHELASTIC_USE_AGENT_STORE", hidden=True)]
Attempt = Annotated[str, typer.Option(envvar="TORCHELASTIC_RESTART_COUNT", hidden=True)]

LearnPlaces = Annotated[
    list[str] | None,
    typer.Option(
        "--learn",
        metavar="PLACE",
        help="Learn a parked message, given as PARTITION@OFFSET; `all`: each. Repeatable.",
        show_default=False,
    ),
]
DropPlaces = Annotated[
    list[str] | None,
    typer.Option(
        "--drop",
        metavar="PLACE",
        help="Never learn a parked message, and write a dead letter. Repeatable.",
        show_default=False,
    ),
]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

app = typer.Typer(help="Learn from examples.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    pass


@app.command()
def run(
    model: ModelFile,
    kafka: KafkaAddress = KAFKA,
    kafka_client: KafkaClient = None,
    redis: RedisUrl = REDIS,
    instance: Instance = "",
    metrics_port: MetricsPort = 0,
    metrics_host: MetricsHost = LOOPBACK,
    accept_topic: AcceptTopic = "",
    accept_gap: AcceptGap = False,
    skip_damaged: SkipDamaged = None,
    examples_of: ExamplesOf = "",
    push_every: PushEvery = "",
    most_rows: MostRows = None,
    evidence: Evidence = 20.0,
    rank: Rank = None,
    world_size: WorldSize = 1,
    master_addr: MasterHost = "127.0.0.1",
    master_port: MasterPort = 29_500,
    agent_store: AgentStore = False,
    attempt: Attempt = "0",
) -> None:
    """Learn from the topic of examples and push updates to the parameter server, until stopped."""
    from headrace.deploy.connections import kafka_settings, open_store
    from headrace.deploy.local import warm_learner
    from headrace.deploy.termination import stopped_by_signals
    from headrace.learner import LearnerSettings, run_learner
    from headrace.learner.loop import (
        BadPushInterval,
        GuardLimits,
        LearnerPacing,
        SurpriseLimits,
        parse_push_interval,
    )
    from headrace.learner.spec import load_spec

    try:
        pace = LearnerPacing(staleness=parse_push_interval(push_every))
    except BadPushInterval as error:
        raise BadOption(f"--push-every / HEADRACE_PUSH_EVERY: {error}") from error
    spec = load_spec(model)
    place = None
    if spec.structure.synchronous and rank is not None:
        from headrace.learner.models.deep import GroupConfig

        place = GroupConfig(rank, world_size, master_addr, master_port, agent_store, attempt)
    with stopped_by_signals() as stop:
        warm_learner(spec)
        run_learner(
            LearnerSettings(
                instance=instance,
                metrics_port=metrics_port,
                metrics_host=metrics_host,
                pace=pace,
                limits=GuardLimits(SurpriseLimits(evidence)),
                accept_topic=accept_topic,
                accept_gap=accept_gap,
                skip_damaged=tuple(skip_damaged or ()),
                examples_of=examples_of,
                most_rows=most_rows,
                place=place,
            ),
            kafka_settings(kafka, kafka_client),
            partial(open_store, redis, spec.name),
            spec,
            stop,
        )


@app.command()
def parked(
    model: ModelFile,
    redis: RedisUrl = REDIS,
    learn: LearnPlaces = None,
    drop: DropPlaces = None,
    as_json: AsJson = False,
) -> None:
    """Show the messages of examples that the batch guard parked; ask to learn or drop some.

    The learner of the partition obeys within seconds, or once it starts.
    """
    from headrace.deploy.connections import open_store
    from headrace.deploy.operations import ask_about, parked_text
    from headrace.learner.loop import ParkedRequest, read_parked
    from headrace.learner.spec import load_spec

    with closing(open_store(redis, load_spec(model).name, read_only=not (learn or drop))) as store:
        ask_about(store, learn or [], ParkedRequest.LEARN)
        ask_about(store, drop or [], ParkedRequest.DROP)
        found = read_parked(store)
        buckets = store.shape().buckets
    if as_json:
        typer.echo(json.dumps([each.described() for each in found], indent=2))
    else:
        typer.echo(parked_text(found, buckets))
