"""Finds the events that earlier runs have sent to the Kafka of a run, and those that were joined.

Models on one Kafka share its events. Each model has a joiner and a learner of its own, which read
all events that Kafka has. A run of another model on the same logs therefore sends only the lines
that are not in Kafka. *Refused:* sending them again, or refusing the run. Joiners refuse a second
copy as too late. And a user who tries two specs on one log expects both to learn it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from headrace.deploy.errors import DeployError
from headrace.ingest.joiner.committed_state import JoinerState, read_state
from headrace.ingest.kafka.reading.bounded_reader import offsets_at
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import EventTopics
from headrace.ingest.logs.layout import LogLayout
from headrace.ingest.logs.opening import open_log
from headrace.ingest.replay.backfill import check_backfill
from headrace.ingest.replay.named_replay import begun_name, model_of, replay_name
from headrace.learner.spec.model_spec import ModelSpec
from headrace.runtime.counted_nouns import counted

if TYPE_CHECKING:
    from headrace.deploy.local.pipeline import PipelineSettings

    class _Logs(Protocol):
        """The logs of a run, and where it runs."""

        @property
        def pipeline(self) -> PipelineSettings: ...

        @property
        def data(self) -> tuple[Path, ...]: ...

        @property
        def layout(self) -> LogLayout | None: ...

        @property
        def sort(self) -> bool: ...


_ADVICE = "Give this log another --state, or leave --state out"


class EarlierRuns:
    """Counts and events of earlier runs on the same Kafka. Empty until `read`."""

    def __init__(self) -> None:
        self.joined = JoinerState()
        """Counts of this model's events."""
        self.replay: str | None = None
        """Name of the replay that this run begins or continues; None: nothing can continue it.

        Without a name, the replay writes no transactions.
        """
        self.unread = False
        """Whether there are events, of which this model has joined none."""

    def read(self, kafka: KafkaSettings, spec: ModelSpec, run: _Logs) -> None:
        """Read it. Raises BackfillRefused, DeployError, KafkaUnreachable."""
        if run.pipeline.state is None and run.pipeline.kafka is None:
            return
        logs = [open_log(path, run.layout) for path in run.data]
        name = replay_name(spec.name, logs, run.layout, sort=run.sort)
        self.joined = read_state(kafka, spec)
        self.unread = not self.joined.impressions and self.joined.lag > 0
        begun = begun_name(kafka, name)
        if begun is None:
            sorted_logs = (open_log(path, run.layout, sort=run.sort) for path in run.data)
            check_backfill(kafka, sorted_logs, spec.fields.label.window_ms, advice=_ADVICE)
        elif begun != name and not self.joined.impressions:
            _check_kept(kafka, begun)
        self.replay = begun or name


def _check_kept(kafka: KafkaSettings, replay: str) -> None:
    """Raise DeployError unless Kafka has all events that a replay for another model has sent."""
    names = EventTopics()
    for topic in (names.impressions, names.clicks):
        if deleted := sum(offsets_at(kafka, topic, 0).values()):
            raise DeployError(
                f"expected all events of these logs, which a run of {model_of(replay)} has sent, "
                f"in topic {topic}, got a topic from which Kafka has deleted the first "
                f"{counted(deleted, 'message')}. {_ADVICE}"
            )
