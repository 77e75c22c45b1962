"""Runs a live experiment as a process: the runner with its clients, clocks, health and metrics."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import REGISTRY

from headrace.ingest.kafka import (
    KafkaReader,
    KafkaWriter,
    PartitionAssigned,
    Record,
    Source,
    ensure_topics,
    examples_topic,
    offsets_at,
)
from headrace.ingest.runtime import ReadLag, running_process, wall_ms
from headrace.learner.experiments.history import decoded
from headrace.learner.experiments.live.history_topic import (
    EXPERIMENTS_TOPIC,
    PublishedFolder,
    PublishedHistory,
    experiments_spec,
    first_record,
    forget,
    read_histories,
    stop_asked,
)
from headrace.learner.experiments.live.live_metrics import ExperimentCollector
from headrace.learner.experiments.live.topic_source import TopicPosition, TopicSource
from headrace.learner.experiments.runner import ExperimentRunner

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from pathlib import Path

    from headrace.ingest.kafka import KafkaSettings, Reader
    from headrace.ingest.runtime import ProcessHealth
    from headrace.learner.experiments.experiment_file import Experiment
    from headrace.learner.experiments.history import ExperimentProgress, ExperimentResult

log = logging.getLogger(__name__)

_ASK_EVERY_S = 1.0
"""For a request to stop."""


@dataclass(frozen=True, slots=True)
class LiveSettings:
    """Settings of one live runner."""

    folder: Path
    """Of the state; on a local disk."""
    save_every_s: float = 60.0
    """A killed runner repeats so much. Decisions are published after the save."""
    hold_s: float = 30.0
    """Time for which batches wait for a partition that is idle, see `topic_source`."""
    restart: bool = False
    """Whether to forget folder and published history."""
    metrics_port: int = 0
    """Port of /metrics and health; 0 serves none."""
    metrics_host: str = "127.0.0.1"


class LiveRun:
    """A runner over a topic, and what ends it."""

    def __init__(
        self,
        experiment: Experiment,
        source: TopicSource,
        folder: PublishedFolder,
        save_every_s: float = 60.0,
    ) -> None:
        """Continue where the folder says, or begin with a record of the log."""
        self._experiment, self._source = experiment, source
        self._whole = True
        self.runner = ExperimentRunner(experiment, source, folder, save_every_s, self._may_begin)
        if not self.runner.resumed:
            topic, topic_id = source.identity.split(" ")[:2]
            begin = first_record(topic, topic_id, source.begins, experiment.fingerprint)
            folder.append([begin])

    def run(
        self, stop: threading.Event, tell: Callable[[ExperimentProgress], bool]
    ) -> ExperimentResult | None:
        """Run until `stop` (returns None), until `tell` returns True, or until no arm is left."""

        def told(progress: ExperimentProgress) -> None:
            asked = tell(progress)
            over = progress.arms == self._experiment.arms or not self._whole
            if asked or (over and not progress.learning):
                position = self.runner.position
                if isinstance(position, TopicPosition):
                    self._source.end_at(position)

        return self.runner.run(stop, told)

    def _may_begin(self) -> bool:
        # retention never gives back what it deleted
        if self._whole and not self._source.whole():
            self._whole = False
            log.warning("no more arms begin: Kafka deleted the first examples of the experiment")
        return self._whole


class _StopRequests:
    """Follows the topic of experiments for a request to stop."""

    def __init__(self, kafka: KafkaSettings, name: str) -> None:
        self._name = name
        self._reader = KafkaReader(kafka, None, [EXPERIMENTS_TOPIC])
        self._asked = self._caught_up = False
        self._next_s = 0.0

    def __call__(self) -> bool:
        """Return whether the experiment should end."""
        if time.monotonic() >= self._next_s:
            for event in self._reader.poll(0.0):
                if isinstance(event, PartitionAssigned):
                    self._reader.start({event.source: self._reader.held(event.source)[0]})
                elif isinstance(event, Record):
                    asked = stop_asked(event, self._name)
                    self._asked = self._asked if asked is None else asked
                else:
                    # before, a later record may revoke an old request
                    self._caught_up = True
            self._next_s = time.monotonic() + _ASK_EVERY_S
        return self._asked and self._caught_up

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()


def _begins(
    kafka: KafkaSettings, experiment: Experiment, folder: PublishedFolder, known: PublishedHistory
) -> tuple[int, ...]:
    """Return the first offsets: those of the run that goes on or is repeated, or new ones."""
    lines = folder.saved_lines()[:1] if folder.begun else list(known.lines[:1])
    if lines:
        [record] = decoded(lines[0])
        return tuple(record.settings["offsets"])
    topic = examples_topic(experiment.control.name)
    with closing(KafkaReader(kafka, None, [topic])) as reader:
        sources = {each.source for each in reader.poll(0.0) if isinstance(each, PartitionAssigned)}
        firsts = {source: reader.held(source)[0] for source in sources}
    if experiment.from_ms is not None:
        chosen = offsets_at(kafka, topic, experiment.from_ms)
        firsts = {source: max(first, chosen[source]) for source, first in firsts.items()}
    return tuple(firsts[Source(topic, number)] for number in range(len(firsts)))


def _open_source(
    kafka: KafkaSettings, experiment: Experiment, begins: tuple[int, ...], hold_s: float
) -> TopicSource:
    topic = examples_topic(experiment.control.name)

    def opened() -> Reader:
        return KafkaReader(kafka, None, [topic])

    with closing(opened()) as reader:
        topic_id = reader.topic_id(topic)
    fields = experiment.control.fields
    return TopicSource(opened, topic, topic_id, fields, begins, hold_s=hold_s, now_ms=wall_ms)


def run_live_experiment(
    settings: LiveSettings, kafka: KafkaSettings, experiment: Experiment, stop: threading.Event
) -> ExperimentResult | None:
    """Run an experiment on its control's examples until it ends or `stop` is set (None).

    Raises the errors of ingest.errors and learner.errors, all of which need an operator.
    """
    ensure_topics(kafka, [experiments_spec()])
    name = experiment.name
    known = read_histories(kafka).get(name, PublishedHistory())
    with ExitStack() as stack:
        writer = stack.enter_context(closing(KafkaWriter(kafka)))
        if settings.restart:
            forget(writer, name, known)
            known = PublishedHistory()
        folder = PublishedFolder(settings.folder, writer, name, known)
        stack.enter_context(closing(folder))
        if settings.restart:
            folder.restart()
        begins = _begins(kafka, experiment, folder, known)
        source = stack.enter_context(
            closing(_open_source(kafka, experiment, begins, settings.hold_s))
        )
        live = LiveRun(experiment, source, folder, settings.save_every_s)
        if live.runner.resumed:
            folder.publish()  # a kill may have come between save and publication
        stops = stack.enter_context(closing(_StopRequests(kafka, name)))
        collector, lag = (
            ExperimentCollector(name),
            ReadLag("headrace_experiment_lag", {"experiment": name}),
        )
        lag.follow(source.held, source.passed)
        address = settings.metrics_host, settings.metrics_port
        with running_process(
            "experiment", kafka, REGISTRY, address, collectors=[collector, lag]
        ) as health:
            return live.run(stop, _teller(collector, lag, health, stops))


def _teller(
    collector: ExperimentCollector, lag: ReadLag, health: ProcessHealth, stops: Callable[[], bool]
) -> Callable[[ExperimentProgress], bool]:
    """Return the callback of each step, which returns whether to end."""
    health.watch(lambda: collector.progress and collector.progress.steps, lag.behind)

    def tell(progress: ExperimentProgress) -> bool:
        collector.progress = progress
        health.stepped()
        return stops()

    return tell
