"""Runs a live experiment as a process: the runner with its clients, clocks, health and metrics."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import REGISTRY, Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from headrace.ingest.kafka.producer import KafkaWriter
from headrace.ingest.kafka.protocols import PartitionAssigned, Reader, Record, Source, Writer
from headrace.ingest.kafka.reading.bounded_reader import offsets_at
from headrace.ingest.kafka.reading.consumer import KafkaReader, poll_from_first
from headrace.ingest.kafka.reading.log_bounds import LogBounds
from headrace.ingest.kafka.reading.read_lag import ReadLag
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import ensure_topics, examples_topic
from headrace.ingest.status import status_in
from headrace.learner.experiments.experiment_file import Experiment
from headrace.learner.experiments.history import ExperimentProgress, ExperimentResult, decoded
from headrace.learner.experiments.live.history_topic import (
    PublishedFolder,
    experiments_spec,
    forget,
    read_histories,
    stop_requested_by,
)
from headrace.learner.experiments.live.live_run import LiveRun
from headrace.learner.experiments.live.topic_source import TopicSource
from headrace.learner.experiments.published_history import EXPERIMENTS_TOPIC, PublishedHistory
from headrace.runtime.clock import wall_ms
from headrace.runtime.health import ProcessHealth
from headrace.runtime.process import running_process

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


class ExperimentCollector(Collector):
    """The metrics of one experiment, labelled with its name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.progress: ExperimentProgress | None = None
        """The newest."""

    def collect(self) -> Iterator[Metric]:
        """Yield the present metrics."""
        now = self.progress
        steps = CounterMetricFamily(
            "headrace_experiment_examples",
            "Examples learned by the arms of an experiment, all arms and the control together.",
            labels=["experiment"],
        )
        steps.add_metric([self._name], now.steps if now else 0)
        yield steps


class _StopRequests:
    """Follows the topic of experiments for a request to stop."""

    def __init__(self, kafka: KafkaSettings, name: str) -> None:
        self._name = name
        self._reader = KafkaReader(kafka, None, [EXPERIMENTS_TOPIC])
        self._stop_requested = self._caught_up = False
        self._next_s = 0.0

    def __call__(self) -> bool:
        """Return whether the experiment should end."""
        if time.monotonic() >= self._next_s:
            for event in poll_from_first(self._reader, 0.0):
                if isinstance(event, Record):
                    request = stop_requested_by(event, self._name)
                    if request is not None:
                        self._stop_requested = request
                else:
                    # before, a later record may revoke an old request
                    self._caught_up = True
            self._next_s = time.monotonic() + _ASK_EVERY_S
        return self._stop_requested and self._caught_up

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
        firsts = {source: reader.bounds(source)[0] for source in sources}
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
        sources = {each.source for each in reader.poll(0.0) if isinstance(each, PartitionAssigned)}
        found = [reader.bounds(source) for source in sources]
    if waits := no_examples(experiment.control.name, found):
        log.warning(waits)
    fields = experiment.control.fields
    return TopicSource(opened, topic, topic_id, fields, begins, hold_s=hold_s, now_ms=wall_ms)


def no_examples(control: str, bounds: Sequence[tuple[int, int]]) -> str:
    """Return a warning for a topic of examples without any; empty if it has some.

    bounds: first offset and end of each partition.
    """
    if any(first < end for first, end in bounds):
        return ""
    return (
        f"topic {examples_topic(control)}: expected examples of the control {control}, got none; "
        f"the experiment waits for them. A promoted model that learns with --examples-of has no "
        "examples of its own: start its joiner, `headrace ingest join --model FILE`"
    )


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
            _restart(settings.folder, writer, name, known)
            known = PublishedHistory()
        folder = PublishedFolder(settings.folder, writer, name, known)
        stack.enter_context(closing(folder))
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
        lag.follow(LogBounds(kafka), source.passed)
        address = settings.metrics_host, settings.metrics_port
        with running_process(
            "experiment", status_in(kafka), REGISTRY, address, collectors=[collector, lag]
        ) as health:
            return live.run(stop, _teller(collector, lag, health, stops))


def _restart(folder: Path, writer: Writer, name: str, known: PublishedHistory) -> None:
    """Forget folder and history. Raises LearnerError."""
    with closing(PublishedFolder(folder, writer, name, known)) as locked:
        forget(writer, name, known)
        locked.restart()


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
