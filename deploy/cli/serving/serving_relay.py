"""`headrace serving relay`: relays the rows of a model to servers by one Kafka topic."""

from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum

from headrace.deploy.connections import open_store
from headrace.deploy.options import (
    METRICS_HOST,
    METRICS_PORT,
    MODEL,
    REDIS,
    KafkaOptions,
    SpecFile,
)
from headrace.runtime.settings import setting
from headrace.runtime.termination import stopped_by_signals, stopped_while_calls_hang


class RelayedValues(StrEnum):
    """The values of a row that a relay writes."""

    ALL = "all"
    FINAL = "final"
    HALF = "half"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRelayOptions:
    """Options of `headrace serving relay`."""

    interval_ms: int = setting(200, env="HEADRACE_RELAY_INTERVAL_MS", least=1)
    """Milliseconds between two writes. A row that changed several times is written once. On
    average, answers are older by half of this time."""
    base_interval_s: int = setting(600, env="HEADRACE_RELAY_BASE_INTERVAL_S", least=10)
    """Seconds in which all rows are written once. At its start, a new server reads two to three
    times as many rows."""
    values: RelayedValues = setting(RelayedValues.ALL, env="HEADRACE_RELAY_VALUES")
    """The values of a row that are written. `all`: the row, which every version reads. `final`: the
    values that scores are computed from, without the optimizer's sums. `half`: the same, weights
    and vectors in 16 bits."""


def relay(
    options: ServingRelayOptions,
    kafka: KafkaOptions,
    model: SpecFile = MODEL,
    redis: str = REDIS,
    metrics_port: int = METRICS_PORT,
    metrics_host: str = METRICS_HOST,
) -> None:
    """Follow the logs of a model, and write its changed rows to the topic relay.MODEL.

    Servers with --relay read this topic in place of the logs. A second relay of the same model
    takes over from the first, which ends at its next write.
    """
    from headrace.learner.models.final_rows import FinalRows
    from headrace.learner.spec.compatibility import check_compatible
    from headrace.serving.relaying.relay_loop import RelayPolicy
    from headrace.serving.relaying.relay_process import RelaySettings, run_relay

    spec = model.spec
    policy = RelayPolicy(options.interval_ms, 1000 * options.base_interval_s)
    form = None
    if options.values is not RelayedValues.ALL:
        form = FinalRows(spec, half=options.values is RelayedValues.HALF).form
    settings = RelaySettings(policy, metrics_port, metrics_host)
    with (
        closing(open_store(redis, spec.name, read_only=True)) as store,
        stopped_by_signals() as stop,
    ):
        check_compatible(spec, store.shape())
        with stopped_while_calls_hang(stop):
            run_relay(settings, kafka.settings(), store, stop, form)
