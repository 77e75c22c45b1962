"""`headrace topics`: changes the topics of running models."""

from __future__ import annotations

import time
from pathlib import Path  # noqa: TC003  (typer reads annotations at run time)
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.counted_nouns import counted
from headrace.deploy.cli.options import KAFKA, KafkaAddress, KafkaClient, valid_specs

if TYPE_CHECKING:
    from headrace.ingest.joiner import OpenWindows

topics_app = typer.Typer(help="Change the topics of running models.", no_args_is_help=True)


@topics_app.callback()
def _group() -> None:
    """Change the topics of running models."""


@topics_app.command()
def grow(
    model: Annotated[
        list[Path],
        typer.Option(
            "--model",
            envvar="HEADRACE_MODEL",
            metavar="FILE",
            help="Model spec (TOML). Repeat it for every model that uses this Kafka.",
            show_default=False,
            callback=valid_specs,
        ),
    ],
    partitions: Annotated[
        int,
        typer.Option(
            "--partitions",
            min=1,
            help="New number of partitions of each topic.",
            show_default=False,
        ),
    ],
    kafka: KafkaAddress = KAFKA,
    kafka_client: KafkaClient = None,
    accept_unmatched: Annotated[
        bool,
        typer.Option(
            "--accept-unmatched",
            help="Grow at once, while impressions arrive or label windows are open. Clicks that "
            "then arrive in another partition than their impression count as unmatched.",
        ),
    ] = False,
) -> None:
    """Add partitions to the topics of running models. First stop all producers of impressions."""
    from headrace.deploy.connections import kafka_settings
    from headrace.ingest.joiner import await_closed, check_growth, open_windows
    from headrace.ingest.joiner import grow as grow_topics
    from headrace.ingest.kafka import partition_counts
    from headrace.learner.spec import load_spec
    from headrace.serving.scoring import scored_topic

    specs = [load_spec(each) for each in model]
    names = [spec.name for spec in specs]
    settings = kafka_settings(kafka, kafka_client)
    check_growth(partition_counts(settings), names, partitions)

    def look() -> OpenWindows:
        return open_windows(settings, specs, int(time.time() * 1000))

    looked = look() if accept_unmatched else await_closed(look, _report)
    grown = grow_topics(settings, names, partitions, looked, beside=map(scored_topic, names))
    for topic in grown.grown:
        typer.echo(f"{topic}: {counted(partitions, 'partition')}")
    if not grown.grown:
        typer.echo(f"every topic has {counted(partitions, 'partition')} already")
    if grown.arrived:
        typer.echo(
            f"warning: {counted(grown.arrived, 'impression')} arrived during the growth, "
            "whose clicks may count as unmatched"
        )
    typer.echo(
        "next: restart the producers, those of clicks first, so that all use the new number; "
        "restart sinks and evaluation, and begin live experiments again: they read the partitions "
        "at their start"
    )


def _report(found: OpenWindows) -> None:
    if found.lag:
        typer.echo(f"waiting for joiners: {counted(found.lag, 'event')} to join")
    else:
        typer.echo(
            f"waiting {found.wait_ms / 1000:.0f} s for the last label window; stop producers of "
            "impressions, because each impression begins another window"
        )
