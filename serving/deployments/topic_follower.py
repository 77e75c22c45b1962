"""Follows the topic `deployments` in a thread, and writes changes to it.

The follower joins no group: every server reads every record, from the start of the topic. It works
without Kafka as well: the server keeps its models and aliases, and tries again. It does not create
the topic, so a server needs no right to do so.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from headrace.ingest.errors import MissingTopic, StreamError
from headrace.ingest.kafka.producer import KafkaWriter
from headrace.ingest.kafka.protocols import Reader, Record, Source
from headrace.ingest.kafka.reading.bounded_reader import read_all
from headrace.ingest.kafka.reading.consumer import poll_from_first
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import AS_THE_BROKER_SAYS, TopicSpec, ensure_topics
from headrace.runtime.background_thread import BackgroundThread
from headrace.serving.deployments.deployed_models import DeployedModels, LoadedModel
from headrace.serving.deployments.deployment_records import DeploymentChange, Deployments
from headrace.serving.deployments.deployment_status import DeploymentStatus
from headrace.serving.models.aliases import Aliases

log = logging.getLogger(__name__)

DEPLOYMENTS_TOPIC = "deployments"
_ONLY = Source(DEPLOYMENTS_TOPIC, 0)
_POLL_S = 0.1
_AGAIN_S = 2.0


def deployments_spec(replicas: int = AS_THE_BROKER_SAYS) -> TopicSpec:
    """Return the topic. One partition, since the order of models and aliases matters."""
    return TopicSpec(DEPLOYMENTS_TOPIC, 1, {"cleanup.policy": "compact"}, replicas=replicas)


def write_deployments(kafka: KafkaSettings, changes: Iterable[DeploymentChange]) -> None:
    """Write changes in order, and create the topic if it is missing. Raises StreamError."""
    ensure_topics(kafka, [deployments_spec()])
    with closing(KafkaWriter(kafka)) as writer:
        for each in changes:
            writer.send(_ONLY, each.value, each.key)
        writer.flush()


def read_deployments(kafka: KafkaSettings) -> Deployments:
    """Return the state of the topic. Raises MissingTopic, KafkaUnreachable."""
    found = Deployments()
    for each in read_all(kafka, DEPLOYMENTS_TOPIC):
        found = found.after(each.key, each.value)
    return found


class TopicFollower(BackgroundThread):
    """Keeps the models of a server as the topic says, in a thread between `start` and `stop`."""

    def __init__(
        self,
        reading: Callable[[], Reader],
        opening: Callable[[str, str], LoadedModel],
        aliases: Aliases,
        fixed: Mapping[str, str],
    ) -> None:
        """Begin without threads.

        reading: connects to Kafka. Other parameters: see `DeployedModels`.
        """
        super().__init__(self._run, "deployments")
        self._reading = reading
        self._executor = ThreadPoolExecutor(1, "deployments")
        self._deployed = DeployedModels(
            opening, aliases, fixed, self._executor.submit, time.monotonic
        )

    @property
    def status(self) -> DeploymentStatus:
        """The present deployments."""
        return self._deployed.status

    def stop(self) -> None:
        """End the thread, and release the models that it loaded."""
        super().stop()
        self._executor.shutdown(cancel_futures=True)
        self._deployed.close()

    def _run(self) -> None:
        said = ""
        while not self._ended.is_set():
            try:
                with closing(self._reading()) as reader:
                    said = ""
                    self._follow(reader)
            except MissingTopic:  # the first change creates it
                self._deployed.begin()
                self._deployed.reached_end()
                self._wait()
            except StreamError as error:
                if str(error) != said:
                    said = str(error)
                    log.warning("models and aliases stay as they are: %s", said)
                self._wait()

    def _wait(self) -> None:
        self._deployed.step()
        self._ended.wait(_AGAIN_S)

    def _follow(self, reader: Reader) -> None:
        self._deployed.begin()
        while not self._ended.is_set():
            for event in poll_from_first(reader, _POLL_S):
                if isinstance(event, Record):
                    self._deployed.take(event.key, event.value)
                else:
                    self._deployed.reached_end()
            self._deployed.step()
