"""`headrace topics`: changes the topics of running models."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from headrace.deploy.options import KafkaOptions, SpecFile
from headrace.runtime.clock import wall_ms
from headrace.runtime.counted_nouns import counted
from headrace.runtime.settings import setting

if TYPE_CHECKING:
    from headrace.ingest.joiner.partition_growth import OpenWindows


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsGrowOptions:
    """Options of `headrace topics grow`."""

    model: list[SpecFile] = setting(env="HEADRACE_MODEL", metavar="FILE")
    """Model spec (TOML). Repeat it for every model that uses this Kafka."""
    partitions: int = setting(least=1)
    """New number of partitions of each topic."""
    accept_unmatched: bool = setting(False)
    """Grow at once, while impressions arrive or label windows are open. Clicks that then arrive in
    another partition than their impression count as unmatched."""


def grow(
    options: TopicsGrowOptions,
    kafka: KafkaOptions,
) -> None:
    """Add partitions to the topics of running models. First stop all producers of impressions."""
    from headrace.ingest.joiner.partition_growth import (
        await_closed,
        check_awaited,
        check_growth,
        open_windows,
    )
    from headrace.ingest.joiner.partition_growth import grow as grow_topics
    from headrace.ingest.kafka.topics import partition_counts
    from headrace.serving.scoring.scoring_process import scored_topic

    specs = [each.spec for each in options.model]
    names = [spec.name for spec in specs]
    settings = kafka.settings()
    counts = partition_counts(settings)
    check_growth(counts, names, options.partitions)

    def look() -> "OpenWindows":
        return open_windows(settings, specs, wall_ms())

    looked = look()
    if not options.accept_unmatched:
        check_awaited(looked, counts)
        looked = await_closed(look, _report)
    grown = grow_topics(
        settings, names, options.partitions, looked, further=map(scored_topic, names)
    )
    for topic in grown.grown:
        click.echo(f"{topic}: {counted(options.partitions, 'partition')}")
    if not grown.grown:
        click.echo(f"every topic has {counted(options.partitions, 'partition')} already")
    if grown.arrived:
        click.echo(
            f"warning: {counted(grown.arrived, 'impression')} arrived during the growth, "
            "whose clicks may count as unmatched"
        )
    click.echo(
        "next: restart the producers, those of clicks first, so that all use the new number; "
        "restart sinks and evaluation, and begin live experiments again: they read the partitions "
        "at their start"
    )


def _report(found: "OpenWindows") -> None:
    if found.lag:
        click.echo(f"waiting for joiners: {counted(found.lag, 'event')} to join")
    else:
        click.echo(
            f"waiting {found.wait_ms / 1000:.0f} s for the last label window; stop producers of "
            "impressions, because each impression begins another window"
        )
