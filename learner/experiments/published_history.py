"""The compacted topic `experiments`: the histories of all live experiments.

    NAME/00000000      the log that the experiment reads: topic and first offsets
    NAME/00000001 ...  records of arms, rungs, scores and decisions, as in history.ndjson
    NAME/stop          a request to stop, until the experiment is begun again
    NAME/front, NAME/late/00000000 ...  the order of late batches (`published_order`)

Each record has a key of its own, so compaction keeps all of them, and a record that is published
twice stays one. Keys of other forms belong to other parts and are skipped.

Runners write the topic (`live.history_topic`); servers, reports and commands only read it.
"""

from collections.abc import Iterable
from typing import NamedTuple

from headrace.ingest.kafka.protocols import Record
from headrace.learner.experiments.history import ArmRecord, decoded

EXPERIMENTS_TOPIC = "experiments"
STOP, FRONT, LATE = "stop", "front", "late/"


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


def histories_of(records: Iterable[Record]) -> dict[str, PublishedHistory]:
    """Return the history of each experiment by its name, from the records of the topic."""
    numbered: dict[str, dict[int, bytes]] = {}
    stops: dict[str, bool] = {}
    orders: dict[str, dict[str, bytes]] = {}
    for record in records:
        name, _, rest = (record.key or b"").decode(errors="replace").partition("/")
        if rest == STOP:
            stops[name] = bool(record.value)
        elif rest == FRONT or rest.startswith(LATE):
            orders.setdefault(name, {})[rest] = record.value
        elif rest.isdecimal() and len(rest) == len(record_key(0)):
            by_number = numbered.setdefault(name, {})
            if record.value:
                by_number[int(rest)] = record.value
            else:
                by_number.pop(int(rest), None)
    return {
        name: PublishedHistory(
            _consecutive(by_number), stops.get(name, False), _present(orders.get(name, {}))
        )
        for name, by_number in numbered.items()
        if by_number
    }


def _present(order: dict[str, bytes]) -> tuple[tuple[str, bytes], ...]:
    return tuple((rest, value) for rest, value in order.items() if value)


def _consecutive(by_number: dict[int, bytes]) -> tuple[bytes, ...]:
    """Return the lines up to the first that is missing: a restart removes the last ones first."""
    lines: list[bytes] = []
    while len(lines) in by_number:
        lines.append(by_number[len(lines)])
    return tuple(lines)


def record_key(number: int) -> str:
    """Return the key of a record behind `NAME/`."""
    return f"{number:08}"
