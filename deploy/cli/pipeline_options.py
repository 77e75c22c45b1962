"""The options that `headrace run` and `headrace demo` share, and the settings made from them.

Typer reads the options of a command from its signature. `with_pipeline_options` replaces the one
parameter `pipeline` of a command by the options of `PipelineOptions`, so that name, default and
help of each are written once.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.deploy.cli.options import (
    Buckets,
    Evaluated,
    EvaluationWindow,
    Host,
    KafkaClient,
    KafkaJars,
    MetricsHost,
    OwnKafka,
    OwnRedis,
    Partitions,
    StateDirectory,
)

if TYPE_CHECKING:
    from headrace.deploy.local import PipelineSettings


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """Options of a pipeline on this machine, as given on the command line."""

    kafka: OwnKafka = None
    kafka_client: KafkaClient = None
    redis: OwnRedis = None
    kafka_jars: KafkaJars = None
    state: StateDirectory = None
    partitions: Partitions = 2
    buckets: Buckets = 8
    evaluate: Evaluated = True
    evaluation_window: EvaluationWindow = 60
    host: Host = "127.0.0.1"
    metrics_host: MetricsHost = "127.0.0.1"

    def settings(
        self, model: Path, port: int, *, port_may_differ: bool = False
    ) -> "PipelineSettings":
        """Return the settings of a pipeline that serves `model` on `port`."""
        from headrace.deploy.local import PipelineSettings

        return PipelineSettings(
            model=model,
            kafka=self.kafka,
            kafka_client=tuple(self.kafka_client or ()),
            redis=self.redis,
            kafka_jars=self.kafka_jars,
            state=self.state,
            partitions=self.partitions,
            buckets=self.buckets,
            evaluated=self.evaluate,
            evaluation_window_s=self.evaluation_window,
            host=self.host,
            metrics_host=self.metrics_host,
            port=port,
            port_may_differ=port_may_differ,
        )


def with_pipeline_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the shared options in place of its parameter `pipeline`."""
    shared = inspect.signature(PipelineOptions).parameters
    own = inspect.signature(command).parameters.values()

    @functools.wraps(command)
    def run(**options: Any) -> None:
        pipeline = PipelineOptions(**{name: options.pop(name) for name in shared})
        command(pipeline=pipeline, **options)

    keyword = inspect.Parameter.KEYWORD_ONLY
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            *(each.replace(kind=keyword) for each in own if each.name != "pipeline"),
            *(each.replace(kind=keyword) for each in shared.values()),
        ]
    )
    return run
