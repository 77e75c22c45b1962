"""Runs evaluation as a process: a feeder thread, and the event loop of Faust.

Any number of processes share the work for a model. Their feeders share the partitions, and one of
the processes folds the rows of all feeders. If it dies, another takes over its table.
"""

import asyncio
import logging
import tempfile
import threading
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import REGISTRY

from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.reading.log_bounds import LogBounds
from headrace.ingest.kafka.reading.read_lag import ReadLag
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import (
    AS_THE_BROKER_SAYS,
    LARGEST_MESSAGE_BYTES,
    TopicSpec,
    ensure_topics,
    examples_topic,
    partition_counts,
    scores_topic,
)
from headrace.ingest.kafka.transactional_ports import open_ports
from headrace.ingest.status import status_in
from headrace.learner.spec.model_spec import ModelSpec
from headrace.runtime.clock import wall_ms
from headrace.runtime.health import ProcessHealth
from headrace.runtime.process import running_process
from headrace.serving.errors import ServingError
from headrace.serving.evaluation.evaluation_metrics import EvaluationCollector
from headrace.serving.evaluation.evaluator import EvaluationRules
from headrace.serving.evaluation.faust_agent import (
    EvaluationAgent,
    changelog_topic,
    group_of,
    make_app,
    rows_topic,
)
from headrace.serving.evaluation.feeder import Feeder, FeedFigures, FeedTopics
from headrace.serving.evaluation.windows import RESULTS, Windows
from headrace.serving.observers.prediction_log import TOPIC, ensure_predictions

log = logging.getLogger(__name__)

_ROWS_DAYS = 1
_DAY_MS = 24 * 3600 * 1000
_STOP_POLL_S = 0.05
_STOP_S = 10.0
"""Kubernetes kills a process 30 s after SIGTERM."""
_MINUTE_MS = 60_000
_HELD_PANES = 10
"""Shortest windows from a prediction to its impression: ten minutes, if they are minutes."""


@dataclass(frozen=True, slots=True)
class EvaluationSettings:
    """Settings that may differ between processes of one model, except for the sample."""

    instance: str = ""
    """Stable over restarts: the process then gets its partitions back at once."""
    metrics_port: int = 0
    """0: no metrics are served."""
    metrics_host: str = "127.0.0.1"
    sample: float = 1.0
    """Share of requests to evaluate. It must be the same in all processes of a model. It may be
    changed; metrics report the smallest share of their window."""
    predictions: str = TOPIC
    """The topic of served predictions; created if it is missing."""
    examples_of: str = ""
    """Name of the model whose examples are read; empty for its own. As for its learner."""
    publish_s: float = 5.0
    """Interval between publications."""
    windows: Windows = field(default_factory=Windows)


def run_evaluation(
    settings: EvaluationSettings, kafka: KafkaSettings, spec: ModelSpec, stop: threading.Event
) -> None:
    """Evaluate until `stop` is set; then write the collected rows, commit, and end.

    Raises ServingError and errors of ingest.errors that need an operator.
    """
    if not 0.0 < settings.sample <= 1.0:
        raise ServingError(f"--sample: expected more than 0, at most 1, got {settings.sample}")
    _quiet()
    topics, sources = _topics(settings, kafka, spec.name)
    rules, ending = rules_of(settings, spec), _EvaluationExit(stop)
    keeper = EvaluationAgent(spec.name, rules, sources, settings.windows, settings.publish_s)
    feeding = _FeederThread(settings, kafka, spec, topics, ending, keeper)
    collectors = [EvaluationCollector(spec.name, keeper, lambda: feeding.figures), feeding.lag]
    address = settings.metrics_host, settings.metrics_port
    with (
        running_process(
            "evaluation", status_in(kafka), REGISTRY, address, collectors=collectors
        ) as health,
        _faust_directory() as directory,
    ):
        feeding.health = health
        feeding.start()
        try:
            asyncio.run(_run_app(keeper, kafka, settings.instance, ending, directory))
        finally:
            ending.leave()
            feeding.join()
    if ending.failure is not None:
        raise ending.failure


def _faust_directory() -> tempfile.TemporaryDirectory[str]:
    """Return a folder for Faust, which asks for one and leaves it empty.

    A read-only root has no folder of temporary files, but memory that a container may write.
    """
    prefix = "headrace-evaluation-"
    try:
        return tempfile.TemporaryDirectory(prefix=prefix)
    except FileNotFoundError:
        return tempfile.TemporaryDirectory(prefix=prefix, dir="/dev/shm")


def rules_of(settings: EvaluationSettings, spec: ModelSpec) -> EvaluationRules:
    """Return the rules that follow from the model spec and the windows."""
    pane_ms = min(settings.windows.lengths_ms[0], _MINUTE_MS)
    return EvaluationRules(
        fields=spec.fields.slice_by,
        pane_ms=pane_ms,
        wait_ms=spec.fields.label.window_ms + pane_ms,
        hold_ms=_HELD_PANES * pane_ms,
        keep_ms=2 * max(settings.windows.lengths_ms),
    )


def evaluation_topics(model: str, replicas: int = AS_THE_BROKER_SAYS) -> tuple[TopicSpec, ...]:
    """Return the topics that evaluation writes."""
    large = {"max.message.bytes": str(LARGEST_MESSAGE_BYTES)}
    compacted = {"cleanup.policy": "compact"}
    rows = {"cleanup.policy": "delete", **large}
    day = {"retention.ms": str(_ROWS_DAYS * _DAY_MS)}
    return (
        TopicSpec(rows_topic(model), 1, rows, day, replicas),
        TopicSpec(changelog_topic(model), 1, {**compacted, **large}, {}, replicas),
        TopicSpec(RESULTS, 1, compacted, {}, replicas),
    )


def _quiet() -> None:
    """Silence Faust's info messages at the default log level."""
    if logging.getLogger().getEffectiveLevel() == logging.INFO:
        for name in ("faust", "aiokafka", "mode"):
            logging.getLogger(name).setLevel(logging.WARNING)


class _EvaluationExit:
    """The end of the process: by request or by an error."""

    def __init__(self, stop: threading.Event) -> None:
        self.stop, self._leaving = stop, threading.Event()
        self.failure: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        """End with this error, unless there is an earlier one."""
        if self.failure is None:
            self.failure = error
        self._leaving.set()

    def leave(self) -> None:
        """End."""
        self._leaving.set()

    @property
    def near(self) -> bool:
        """Whether the process should end."""
        return self.stop.is_set() or self._leaving.is_set()


class _FeederThread(threading.Thread):
    """The feeder's thread."""

    def __init__(
        self,
        settings: EvaluationSettings,
        kafka: KafkaSettings,
        spec: ModelSpec,
        topics: FeedTopics,
        ending: _EvaluationExit,
        agent: EvaluationAgent,
    ) -> None:
        super().__init__(name="feeder")
        self._agent = agent
        self._settings, self._kafka, self._spec = settings, kafka, spec
        self._topics, self._ending = topics, ending
        self.figures = FeedFigures()
        self.health = ProcessHealth()
        self.lag = ReadLag("headrace_evaluation_lag", {"model": spec.name})

    def run(self) -> None:
        """Feed until the process ends."""
        try:
            self._feed()
        except BaseException as error:  # noqa: BLE001 - `run_evaluation` raises it
            self._ending.fail(error)

    def _feed(self) -> None:
        group, instance = f"{group_of(self._spec.name)}.feeder", self._settings.instance
        names = [self._topics.examples, self._topics.scores, self._topics.predictions]
        stop = self._ending.stop
        with open_ports(self._kafka, group, names, instance, stop, wall_ms) as ports:
            spec, settings = self._spec, self._settings
            feeder = Feeder(ports, self._topics, spec.name, spec.fields, settings.sample)
            self.figures = feeder.figures
            rows = Source(self._topics.rows, 0)
            self.lag.follow(LogBounds(self._kafka), lambda: dict(feeder.read), [rows])
            self.health.watch(self.lag.progress, self.lag.behind)
            self.health.watch(
                lambda: self._agent.folded,
                lambda: self._agent.behind(self.lag.known().get(rows, (0, -1))[1]),
            )
            while not self._ending.near:
                feeder.step(0.05)
                self.health.stepped()
            feeder.finish()


async def _run_app(
    keeper: EvaluationAgent,
    kafka: KafkaSettings,
    instance: str,
    ending: _EvaluationExit,
    directory: str,
) -> None:
    app = make_app(keeper, kafka, instance, ending.fail, directory)
    await app.start()
    try:
        while not ending.near:
            # polled, because a threading.Event cannot wake an event loop
            await asyncio.sleep(_STOP_POLL_S)
            if app.crashed:
                ending.fail(app.crash_reason or ServingError("Faust's worker crashed"))
    finally:
        await _stop(app)


async def _stop(app: Any) -> None:
    """Stop Faust within `_STOP_S`. Its client would wait for Kafka, however long that is away.

    The next process reads the messages again that are not committed then.
    """
    try:
        async with asyncio.timeout(_STOP_S):
            await app.stop()
    except TimeoutError:
        log.warning("expected Kafka to answer within %g s of the stop: ended without it", _STOP_S)


def _topics(
    settings: EvaluationSettings, kafka: KafkaSettings, model: str
) -> tuple[FeedTopics, tuple[str, ...]]:
    """Create evaluation's topics; return all topics, and the partitions to evaluate."""
    examples, scores = examples_topic(settings.examples_of or model), scores_topic(model)
    counts = partition_counts(kafka, (examples, scores))
    missing = [name for name in (examples, scores) if name not in counts]
    if missing:
        raise ServingError(
            f"expected topics {examples} and {scores}, got no {', '.join(missing)}: "
            "`headrace ingest topics --model FILE` creates them"
        )
    ensure_topics(kafka, evaluation_topics(model))
    predictions = settings.predictions
    counts[predictions] = ensure_predictions(kafka, counts[examples], predictions)
    sources = tuple(f"{name}/{number}" for name, count in counts.items() for number in range(count))
    return FeedTopics(examples, scores, settings.predictions, rows_topic(model)), sources
