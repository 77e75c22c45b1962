"""Logs of impressions and clicks as a source of examples, joined in this process.

A log is a directory of NDJSON, or a file with a layout, as `headrace run` replays it. The core of
the joiner joins it as one partition, under the label policy of the spec. So the examples are those
that a joiner would write for topics of one partition.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from headrace.ingest.events.contract import TIME
from headrace.ingest.examples.batch import Examples, concatenate
from headrace.ingest.examples.ordering import reordered
from headrace.ingest.examples.splitting import part_of
from headrace.ingest.joiner.core.input import ChunkReader, EventSide
from headrace.ingest.joiner.core.join import PartitionJoiner
from headrace.ingest.kafka.protocols import MessageBlock, Record, Source
from headrace.ingest.logs.layout import LogLayout
from headrace.ingest.logs.ndjson import EventLog, Line
from headrace.ingest.logs.opening import open_log
from headrace.learner.batch.sources import ExampleBlock, FilePosition
from headrace.learner.inputs.slates import last_slate, slate_order
from headrace.learner.spec.model_spec import ModelSpec

_EVENTS_A_TURN = 4096


class EventLogSource:
    """Logs in their order, each after the one before in event time. Raises NoEventsError."""

    def __init__(
        self, paths: Sequence[Path], spec: ModelSpec, layout: LogLayout | None = None
    ) -> None:
        """`layout`: of files; None: the paths are directories of NDJSON."""
        self._logs: list[EventLog] = [open_log(path, layout) for path in paths]
        self._fields = spec.fields

    @property
    def identity(self) -> str:
        """Text that changes when a log is added, removed or has another size."""
        return " ".join(f"{log.path}:{log.bytes_total}" for log in self._logs)

    @property
    def marks(self) -> Mapping[str, int]:
        """Logs have no offsets."""
        return {}

    def count(self) -> None:
        """`read` is a share of bytes."""

    def blocks(self, after: FilePosition) -> Iterator[ExampleBlock]:
        """Yield the blocks behind a place; the log before it is joined again."""
        waiting, block = Examples.empty(self._fields), 0
        for examples, read in self._joined():
            waiting = concatenate([waiting, examples])
            if len(waiting) < _EVENTS_A_TURN and read < 1.0:
                continue
            # the last request may have more candidates in the next turn
            ready = len(waiting) if read == 1.0 else last_slate(waiting)
            learned, waiting = part_of(waiting, 0, ready), part_of(waiting, ready, len(waiting))
            if not ready:
                continue
            block += 1
            if block > after.block:
                order = slate_order(learned)
                learned = learned if order is None else reordered(learned, order)
                yield ExampleBlock(learned, FilePosition(0, block), read)

    def _joined(self) -> Iterator[tuple[Examples, float]]:
        """Yield what each turn makes, and the share of bytes read; 1 at the end only."""
        reader, joiner = ChunkReader(self._fields), PartitionJoiner(self._fields)
        offsets, clock_ms = dict.fromkeys(EventSide, 0), 0
        total = max(sum(log.bytes_total for log in self._logs), 1)
        for number, log in enumerate(self._logs):
            before = sum(each.bytes_total for each in self._logs[:number])
            lines = log.lines()
            while turn := list(islice(lines, _EVENTS_A_TURN)):
                clock_ms = max(clock_ms, turn[-1].time_ms)
                _offer(turn, clock_ms, offsets, reader, joiner)
                read = min((before + log.bytes_read()) / total, 0.999)
                yield from ((examples, read) for examples in self._advanced(joiner))
        closing_ms = clock_ms + self._fields.label.window_ms + 1
        _offer([], closing_ms, offsets, reader, joiner)
        yield from ((examples, 0.999) for examples in self._advanced(joiner))
        yield Examples.empty(self._fields), 1.0

    def _advanced(self, joiner: PartitionJoiner) -> Iterator[Examples]:
        while True:
            joined = joiner.advance(0, _EVENTS_A_TURN)
            if not joined.taken and not len(joined.examples):
                return
            yield joined.examples


def _offer(
    turn: Sequence[Line],
    clock_ms: int,
    offsets: dict[EventSide, int],
    reader: ChunkReader,
    joiner: PartitionJoiner,
) -> None:
    """Offer the events of a turn, and on both sides the time that the log has reached.

    The time of a line is its append time. Lines before the first usable time are at 1 ms, since
    events without an append time may have any time.
    """
    ticks = [(clock_ms, b'{"%s":%d}' % (TIME.encode(), clock_ms))] if clock_ms else []
    for side in EventSide:
        clicks = side is EventSide.CLICKS
        lines = [(max(line.time_ms, 1), line.value) for line in turn if line.is_click is clicks]
        source, first = Source(side.name.lower(), 0), offsets[side]
        records = [
            Record(source, first + place, time_ms, value)
            for place, (time_ms, value) in enumerate([*lines, *ticks])
        ]
        offsets[side] = first + len(records)
        joiner.offer(reader.read(side, MessageBlock.of(records)))
        joiner.ended(side)
