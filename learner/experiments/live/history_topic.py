"""Writes the histories of live experiments to the topic `experiments` (`published_history`)."""

from collections.abc import Iterable
from pathlib import Path

from headrace.ingest.kafka.protocols import Record, Source, Writer
from headrace.ingest.kafka.reading.bounded_reader import read_all
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import TopicSpec
from headrace.learner.errors import LearnerError
from headrace.learner.experiments.history import ArmRecord
from headrace.learner.experiments.live.published_order import PublishedOrder
from headrace.learner.experiments.live.topic_source import FirstPass
from headrace.learner.experiments.published_history import (
    EXPERIMENTS_TOPIC,
    STOP,
    PublishedHistory,
    histories_of,
    record_key,
)
from headrace.learner.experiments.run_folder import RunFolder

_TARGET = Source(EXPERIMENTS_TOPIC, 0)


def experiments_spec() -> TopicSpec:
    """Return the topic, which Kafka keeps without a limit."""
    return TopicSpec(EXPERIMENTS_TOPIC, 1, {"cleanup.policy": "compact"})


def read_histories(kafka: KafkaSettings) -> dict[str, PublishedHistory]:
    """Return the history of each experiment. Raises KafkaUnreachable, MissingTopic."""
    return histories_of(read_all(kafka, EXPERIMENTS_TOPIC))


def request_stop(writer: Writer, name: str) -> None:
    """Ask the runner of an experiment to end it, which it does within seconds."""
    writer.send(_TARGET, b'{"kind":"stop"}', f"{name}/{STOP}".encode())
    writer.flush()


def stop_requested_by(record: Record, name: str) -> bool | None:
    """Return whether a record asks an experiment to stop; None if it is about something else."""
    return bool(record.value) if record.key == f"{name}/{STOP}".encode() else None


def forget(writer: Writer, name: str, published: PublishedHistory) -> None:
    """Remove an experiment from the topic, its last record first."""
    for number in reversed(range(len(published.lines))):
        writer.send(_TARGET, b"", f"{name}/{record_key(number)}".encode())
    for rest in (STOP, *(rest for rest, _ in published.order)):
        writer.send(_TARGET, b"", f"{name}/{rest}".encode())
    writer.flush()


class PublishedFolder(RunFolder):
    """A run's folder whose history is published after each save."""

    taken: FirstPass | None = None
    """The order of batches, which is published before the history."""

    def __init__(self, path: Path, writer: Writer, name: str, published: PublishedHistory) -> None:
        """`published`: what the topic has. Raises LearnerError."""
        super().__init__(path)
        self._writer, self._name = writer, name
        self._published, self._checked = list(published.lines), 0
        self.order = PublishedOrder(dict(published.order))
        """The published order of batches."""

    def save(self, fingerprint: str, source: str, run: object) -> None:
        """Make `run` the state, then publish all records so far. Raises LearnerError."""
        super().save(fingerprint, source, run)
        self.publish()

    def publish(self) -> None:
        """Publish what the folder has and the topic lacks, and compare the rest."""
        if self.taken is not None:
            self.order.publish(self.taken, self._send)
        lines = self.saved_lines()
        for number in range(self._checked, len(lines)):
            if number < len(self._published):
                self._compare(number, lines[number])
            else:
                self._send(record_key(number), lines[number])
                self._published.append(lines[number])
        self._writer.flush()
        self._checked = len(lines)

    def _send(self, rest: str, value: bytes) -> None:
        self._writer.send(_TARGET, value, f"{self._name}/{rest}".encode())

    def _compare(self, number: int, line: bytes) -> None:
        if self._published[number] != line:
            raise LearnerError(
                f"topic {EXPERIMENTS_TOPIC}, experiment {self._name}, record {number}: expected "
                f"{self._published[number].decode()}, got {line.decode()} from this folder, file "
                "and log. Use the folder that published it, or begin again with --restart"
            )


def first_record(topic: str, topic_id: str, begins: Iterable[int], fingerprint: str) -> ArmRecord:
    """Return the record of the log that an experiment reads."""
    settings = {
        "topic": topic,
        "topic_id": topic_id,
        "offsets": list(begins),
        "experiment": fingerprint,
    }
    return ArmRecord("log", 0, "log", settings=settings)
