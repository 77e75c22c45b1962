"""The status of all processes in a terminal: what the page of a server shows, without a server.

It reads the topic `status` once. So it shows present figures, and no rates.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from headrace.ingest.kafka.reading.bounded_reader import read_all
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import STATUS_TOPIC
from headrace.ingest.status import ProcessStatus, UnreadableStatus, unpack
from headrace.runtime.printable_text import printable
from headrace.serving.page.field_coverage import (
    DIFFERS,
    MISSING_IN_EVENTS,
    MISSING_IN_REQUESTS,
    UNKNOWN,
)
from headrace.serving.page.history import History

log = logging.getLogger(__name__)

COLUMNS = 80
"""Width of every line, also on a wider terminal."""
_ROLE, _INSTANCE, _FIELD = 12, 52, 38
_ADVICE = {
    MISSING_IN_EVENTS: "the model learns the field as absent",
    MISSING_IN_REQUESTS: "scores are computed without the field",
    DIFFERS: "some producers or clients do not send the field",
    UNKNOWN: "servers ignore the field",
}
"""By the note of a field."""


def read_status(kafka: KafkaSettings, now_ms: int) -> dict[str, Any]:
    """Return the figures of all processes, as for the page.

    Raises KafkaUnreachable, and MissingTopic if no process has reported.
    """
    return figures_of(_statuses(kafka), now_ms)


def figures_of(statuses: Iterable[ProcessStatus], now_ms: int) -> dict[str, Any]:
    """Return the figures of these processes."""
    history = History(())
    for status in statuses:
        history.take(status)
    history.step(now_ms)
    return history.answer(now_ms)


def _statuses(kafka: KafkaSettings) -> Iterator[ProcessStatus]:
    for record in read_all(kafka, STATUS_TOPIC):
        try:
            yield unpack(record.value)
        except UnreadableStatus as error:
            log.warning("in topic %s: %s", STATUS_TOPIC, error)


def status_text(figures: Mapping[str, Any]) -> str:
    """Return the figures as lines of at most COLUMNS characters."""
    parts = [
        _processes(figures["processes"]),
        *_coverage(figures["coverage"]),
        _dead_letters(figures["dead_letters"]),
        _parked(figures["parked"]),
    ]
    return "\n\n".join("\n".join(map(printable, part)) for part in parts if part)


def _processes(processes: list[dict[str, Any]]) -> list[str]:
    if not processes:
        return ["expected the status of a process, got none: start processes with --kafka"]
    lines = [f"{'process':{_ROLE}}  {'instance':{_INSTANCE}}  last seen"]
    for each in processes:
        seen = _ago(each["seconds_ago"]) if each["state"] == "here" else each["state"]
        role, instance = _cut(each["process"], _ROLE), _cut(each["instance"], _INSTANCE)
        lines.append(f"{role:{_ROLE}}  {instance:{_INSTANCE}}  {seen}")
    return lines


def _coverage(fields: list[dict[str, Any]]) -> Iterator[list[str]]:
    """Yield the lines of each model."""
    for model, rows in groupby(fields, lambda row: str(row["model"])):
        covered = list(rows)
        width = min(_FIELD, max(5, *(len(row["field"]) for row in covered)))
        title = f"{model}: share of recent events and requests with a value, in ten minutes"
        lines = [_cut(title, COLUMNS), f"{'field':{width}}   events  requests"]
        for row in covered:
            shares = f"{_percent(row['events']):>7}   {_percent(row['requests']):>7}"
            line = f"{_cut(row['field'], width):{width}}  {shares}  {row['note']}"
            lines.append(line.rstrip())
        notes = dict.fromkeys(row["note"] for row in covered if row["note"])
        yield lines + [f"- {note}: {_ADVICE[note]}" for note in notes]


def _dead_letters(letters: Mapping[str, float]) -> list[str]:
    found = {reason: count for reason, count in letters.items() if count > 0}
    if not found:
        return []
    return [
        "dead letters since the start of the joiners, by reason",
        *(f"{count:>10,.0f}  {reason}" for reason, count in found.items()),
    ]


def _parked(parked: Sequence[Mapping[str, Any]]) -> list[str]:
    if not parked:
        return []
    title = "parked examples, not learned so far (headrace learner parked)"
    return [
        title,
        *(
            f"{each['examples']:>10,}  {_cut(each['model'], 40)}, partition {each['partition']}: "
            f"{each['cause']}"
            for each in sorted(parked, key=lambda each: (each["model"], each["partition"]))
        ),
    ]


def _ago(seconds: float) -> str:
    return "now" if seconds < 5 else f"{seconds:.0f} s ago"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
