"""Logs of impressions and clicks as a source of examples, joined in this process.

A log is a directory of NDJSON, or a file with a layout, as `headrace run` replays it.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from headrace.ingest.examples.batch import Examples
from headrace.ingest.logs.layout import LogLayout
from headrace.ingest.logs.ndjson import EventLog
from headrace.ingest.logs.opening import open_log
from headrace.learner.batch.sources import BatchSource, ExampleBlock, FilePosition
from headrace.learner.local.event_join import EVENTS_A_TURN, EventJoin
from headrace.learner.spec.model_spec import ModelSpec


class EventLogSource(BatchSource):
    """Logs in their order, each after the one before in event time. Raises NoEventsError."""

    def __init__(
        self, paths: Sequence[Path], spec: ModelSpec, layout: LogLayout | None = None
    ) -> None:
        """`layout`: of files; None: the paths are directories of NDJSON."""
        self._logs: list[EventLog] = [open_log(path, layout) for path in paths]
        self._fields = spec.fields

    @property
    def identity(self) -> str:
        """Paths and sizes of the logs."""
        return " ".join(f"{log.path}:{log.bytes_total}" for log in self._logs)

    def blocks(self, after: FilePosition) -> Iterator[ExampleBlock]:
        """Yield the blocks behind a place; the log before it is joined again."""
        block = 0
        for examples, read in self._joined():
            if len(examples):
                block += 1
                if block > after.block:
                    yield ExampleBlock(examples, FilePosition(0, block), read)

    def _joined(self) -> Iterator[tuple[Examples, float]]:
        """Yield the examples of each turn, and the share of bytes read."""
        join, total = EventJoin(self._fields), max(sum(log.bytes_total for log in self._logs), 1)
        for number, log in enumerate(self._logs):
            before = sum(each.bytes_total for each in self._logs[:number])
            lines = log.lines()
            while turn := list(islice(lines, EVENTS_A_TURN)):
                join.offer_lines(turn)
                read = min((before + log.bytes_read()) / total, 1.0)
                yield from ((each.examples, read) for each in join.joined(more_follow=True))
        yield from ((each.examples, 1.0) for each in join.closed())
