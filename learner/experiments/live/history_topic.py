"""The compacted topic `experiments`: the histories of all live experiments.

    NAME/00000000      the log that the experiment reads: topic and first offsets
    NAME/00000001 ...  records of arms, rungs, scores and decisions, as in history.ndjson
    NAME/stop          a request to stop, until the experiment is begun again
    NAME/front, NAME/late/00000000 ...  the order of late batches (`published_order`)

Each record has a key of its own, so compaction keeps all of them, and a record that is published
twice stays one. Keys of other forms belong to other parts and are skipped.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from headrace.ingest.kafka.protocols import Record, Source, Writer
from headrace.ingest.kafka.reading.bounded_reader import read_all
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import TopicSpec
from headrace.learner.errors import LearnerError
from headrace.learner.experiments.history import ArmRecord, decoded
from headrace.learner.experiments.live.published_order import FRONT, LATE, PublishedOrder
from headrace.learner.experiments.live.topic_source import FirstPass
from headrace.learner.experiments.run_folder import RunFolder

EXPERIMENTS_TOPIC = "experiments"
_TARGET = Source(EXPERIMENTS_TOPIC, 0)
_STOP = "stop"


class DivergedHistory(LearnerError):
    """The published history is not that of this experiment file and folder."""


class PublishedHistory(NamedTuple):
    """The published history of one experiment."""

    lines: tuple[bytes, ...] = ()
    """Records as JSON, in their order."""
    stop: bool = False
    """Whether the experiment should stop."""
    order: tuple[tuple[str, bytes], ...] = ()
    """Records of `published_order`, by the rest of their keys."""

    @property
    def records(self) -> list[ArmRecord]:
        """The records."""
        return decoded(b"\n".join(self.lines))


def experiments_spec() -> TopicSpec:
    """Return the topic, which Kafka keeps without a limit."""
    return TopicSpec(EXPERIMENTS_TOPIC, 1, {"cleanup.policy": "compact"})


def histories_of(records: Iterable[Record]) -> dict[str, PublishedHistory]:
    """Return the history of each experiment by its name, from the records of the topic."""
    numbered: dict[str, dict[int, bytes]] = {}
    stops: dict[str, bool] = {}
    orders: dict[str, dict[str, bytes]] = {}
    for record in records:
        name, _, rest = (record.key or b"").decode(errors="replace").partition("/")
        if rest == _STOP:
            stops[name] = bool(record.value)
        elif rest == FRONT or rest.startswith(LATE):
            orders.setdefault(name, {})[rest] = record.value
        elif rest.isdecimal() and len(rest) == len(_key(0)):
            held = numbered.setdefault(name, {})
            if record.value:
                held[int(rest)] = record.value
            else:
                held.pop(int(rest), None)
    return {
        name: PublishedHistory(
            _consecutive(held), stops.get(name, False), _present(orders.get(name, {}))
        )
        for name, held in numbered.items()
        if held
    }


def _present(order: dict[str, bytes]) -> tuple[tuple[str, bytes], ...]:
    return tuple((rest, value) for rest, value in order.items() if value)


def _consecutive(held: dict[int, bytes]) -> tuple[bytes, ...]:
    """Return the lines up to the first that is missing: a restart removes the last ones first."""
    lines: list[bytes] = []
    while len(lines) in held:
        lines.append(held[len(lines)])
    return tuple(lines)


def read_histories(kafka: KafkaSettings) -> dict[str, PublishedHistory]:
    """Return the history of each experiment. Raises KafkaUnreachable, MissingTopic."""
    return histories_of(read_all(kafka, EXPERIMENTS_TOPIC))


def request_stop(writer: Writer, name: str) -> None:
    """Ask the runner of an experiment to end it, which it does within seconds."""
    writer.send(_TARGET, b'{"kind":"stop"}', f"{name}/{_STOP}".encode())
    writer.flush()


def stop_asked(record: Record, name: str) -> bool | None:
    """Return whether a record asks an experiment to stop; None if it is about something else."""
    return bool(record.value) if record.key == f"{name}/{_STOP}".encode() else None


def forget(writer: Writer, name: str, published: PublishedHistory) -> None:
    """Remove an experiment from the topic, its last record first."""
    for number in reversed(range(len(published.lines))):
        writer.send(_TARGET, b"", f"{name}/{_key(number)}".encode())
    for rest in (_STOP, *(rest for rest, _ in published.order)):
        writer.send(_TARGET, b"", f"{name}/{rest}".encode())
    writer.flush()


class PublishedFolder(RunFolder):
    """A run's folder whose history is published after each save."""

    taken: FirstPass | None = None
    """The order of batches, which is published before the history."""

    def __init__(self, path: Path, writer: Writer, name: str, published: PublishedHistory) -> None:
        """`published`: what the topic has. Raises BusyExperiment."""
        super().__init__(path)
        self._writer, self._name = writer, name
        self._published, self._checked = list(published.lines), 0
        self.order = PublishedOrder(dict(published.order))
        """The published order of batches."""

    def save(self, fingerprint: str, source: str, run: object) -> None:
        """Make `run` the state, then publish all records so far. Raises DivergedHistory."""
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
                self._send(_key(number), lines[number])
                self._published.append(lines[number])
        self._writer.flush()
        self._checked = len(lines)

    def _send(self, rest: str, value: bytes) -> None:
        self._writer.send(_TARGET, value, f"{self._name}/{rest}".encode())

    def _compare(self, number: int, line: bytes) -> None:
        if self._published[number] != line:
            raise DivergedHistory(
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


def _key(number: int) -> str:
    return f"{number:08}"
