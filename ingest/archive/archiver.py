"""Writes topics to Parquet: raw events and examples, by hour, for batch work and long storage.

One process reads every partition, so a rebalance of a consumer group cannot cause rows to be
written twice. Rows of a partition are gathered until they are enough or old enough. They are then
written in one step that counts completely or not at all (`ingest.archive.parquet_folder`): each
record once, also after a kill.

While the folder is full, the archiver reads nothing and tries again: Kafka holds the rest, and a
restart would change nothing. An archiver that stops does not write for long: the next one reads
what is not written again.

The hour is that of the event, in UTC. A record without a readable time has the hour of its append.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from prometheus_client import CollectorRegistry, Counter, Gauge

from headrace.ingest.archive.parquet_folder import ArchiveError, ArchiveFolder, ArchiveFull
from headrace.ingest.events.contract import EARLIEST_MS, LATEST_MS
from headrace.ingest.examples.arrow_batch import open_batch
from headrace.ingest.examples.continuity import Continuity, examples_before
from headrace.ingest.examples.damaged_messages import DamagedMessages
from headrace.ingest.kafka.protocols import (
    AtEnd,
    PartitionAssigned,
    PartitionRevoked,
    Reader,
    Record,
    Source,
)
from headrace.ingest.kafka.reading.consumer import KafkaReader
from headrace.ingest.kafka.reading.log_bounds import LogBounds
from headrace.ingest.kafka.reading.read_lag import ReadLag
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import EventTopics, examples_topic
from headrace.ingest.status import status_in
from headrace.runtime.counted_nouns import counted
from headrace.runtime.process import running_process
from headrace.runtime.undecodable import UNDECODABLE

log = logging.getLogger(__name__)

HOUR = "%Y-%m-%dT%H"
_FULL_RETRY_S = 2.0
_LAST_WRITES_S = 5.0
"""Time in which a sink that stops begins to write partitions. One takes some seconds, and a
supervisor kills processes that stop for longer than its grace period."""


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """When the rows of a partition are written, and where metrics are served."""

    most_rows: int = 250_000
    """Rows gathered of a partition: some tens of MB, so that files are neither many nor huge."""
    most_age_s: float = 300.0
    """Age of the oldest gathered row at which rows are written."""
    metrics_port: int = 0
    """0: serve no metrics."""
    metrics_host: str = "127.0.0.1"
    """Metrics contain no event data."""
    skip_damaged: tuple[str, ...] = ()
    """Damaged messages of examples to skip, each as TOPIC/PARTITION@OFFSET."""


class _EventHead(msgspec.Struct):
    """The fields with columns of their own in the table of events."""

    timestamp_ms: int | float | None = None
    impression_id: str | None = None
    request_id: str | None = None


_EVENTS = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("append_ms", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("impression_id", pa.string()),
        ("request_id", pa.string()),
        ("event", pa.string()),  # as sent; null if it is not UTF-8
        ("raw", pa.binary()),  # the bytes of such an event
    ]
)
_OF_ALL = (b"fingerprint", b"negative_rate")
_decode_head = msgspec.json.Decoder(_EventHead)


def event_table(records: Sequence[Record]) -> pa.Table:
    """Return records of a topic of events as a table."""
    columns: dict[str, list[object]] = {name: [] for name in _EVENTS.names}
    for record in records:
        try:
            head = _decode_head.decode(record.value)
        except UNDECODABLE:
            head = _EventHead()
        time_ms = head.timestamp_ms
        usable = time_ms is not None and EARLIEST_MS <= time_ms < LATEST_MS
        try:
            text, raw = record.value.decode(), None
        except UnicodeDecodeError:
            text, raw = None, record.value
        row = (
            *(record.source.partition, record.offset, record.append_ms),
            int(time_ms) if time_ms is not None and usable else None,
            *(head.impression_id, head.request_id, text, raw),
        )
        for column, value in zip(columns.values(), row, strict=True):
            column.append(value)
    return pa.table(columns, _EVENTS)


def example_table(records: Sequence[Record]) -> pa.Table:
    """Return batches of examples as one table; the order within a batch is `position`.

    Its metadata has what the batches of a topic have in common.
    """
    tables, facts = [], {}
    for record in records:
        table = pa.Table.from_batches([_read_batch(record.value)])
        for name in _OF_ALL:
            if name in (table.schema.metadata or {}):
                facts[name] = table.schema.metadata[name]
        table, count = table.replace_schema_metadata(), table.num_rows
        tables.append(
            table.append_column("partition", pa.repeat(pa.scalar(record.source.partition), count))
            .append_column("offset", pa.repeat(pa.scalar(record.offset), count))
            .append_column("position", pa.array(range(count), pa.int32()))
            .rename_columns({"event_ms": "timestamp_ms"})
        )
    # an empty batch does not know how many bags its examples would have
    filled = [table for table in tables if table.num_rows] or tables[:1]
    return pa.concat_tables(filled).replace_schema_metadata(facts)


def _read_batch(blob: bytes) -> pa.RecordBatch:
    return open_batch(blob).read({"event_ms": (pa.int64(),)})


def _counted_batch(blob: bytes) -> tuple[int, int]:
    """Return how many examples came before a batch, and how many it has."""
    batch = _read_batch(blob)
    return examples_before(batch.schema.metadata or {}), batch.num_rows


def by_hour(table: pa.Table) -> dict[str, pa.Table]:
    """Return the rows of each hour, in their order."""
    time_ms = table["timestamp_ms"]
    if time_ms.null_count:
        time_ms = pc.coalesce(time_ms, table["append_ms"])
    hours = pc.strftime(time_ms.cast(pa.timestamp("ms", "UTC")), HOUR)
    found = sorted(hours.unique().to_pylist())
    return {hour: table.filter(pc.equal(hours, hour)) for hour in found}


@dataclass(slots=True)
class _Gathered:
    """Records of one partition that are not yet written."""

    start: int
    topic_id: str
    records: list[Record] = field(default_factory=list)
    rows: int = 0
    since_s: float = 0.0
    stop: int = 0
    """The offset after the last record, and after the transaction markers that follow it."""


class Archiver:
    """Gathers records and writes them. Not thread-safe."""

    def __init__(
        self,
        reader: Reader,
        folder: ArchiveFolder,
        examples: str | None,
        settings: ArchiveSettings,
        now_s: Callable[[], float] = time.monotonic,
        wrote: Callable[[str, int], object] = lambda *_: None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """examples: the topic whose records are batches of examples; other topics have events.

        stopping: asked between two partitions of a step.
        """
        self._reader, self._folder, self._examples = reader, folder, examples
        self._settings, self._now_s, self._wrote = settings, now_s, wrote
        self._stopping = stopping
        self._messages = DamagedMessages(settings.skip_damaged)
        self._continuity = Continuity()
        self._gathered: dict[Source, _Gathered] = {}
        self.full = False
        """Whether the folder had no room at the last write."""

    def positions(self) -> dict[Source, int]:
        """Return the next offset to read of each source. Safe in other threads."""
        return {source: gathered.stop for source, gathered in list(self._gathered.items())}

    def step(self, timeout_s: float) -> bool:
        """Gather new records; write partitions with enough or old rows.

        Return False if the folder is full. The next step then only tries to write again. Raises
        ArchiveError, DamagedMessage.
        """
        if not self.full:
            self._gather(timeout_s)
        was_full = self.full
        try:
            self._write_due()
        except ArchiveFull as error:
            self.full = True
            log.warning("%s: waiting for room", error)
            return False
        self.full = False
        if was_full:
            log.info("the folder has room again")
        return True

    def _gather(self, timeout_s: float) -> None:
        for event in self._reader.poll(timeout_s):
            match event:
                case PartitionAssigned(source=source):
                    self._begin(source)
                case PartitionRevoked(source=source):
                    self._gathered.pop(source, None)
                case Record(source=source):
                    self._take(event)
                case AtEnd(source=source, offset=offset):
                    gathered = self._gathered[source]
                    gathered.stop = max(gathered.stop, offset)

    def _write_due(self) -> None:
        now_s = self._now_s()
        for source, gathered in self._gathered.items():
            if self._stopping():
                return
            old = gathered.records and now_s - gathered.since_s >= self._settings.most_age_s
            if gathered.rows >= self._settings.most_rows or old:
                self._write(source, gathered)

    def finish(self, within_s: float = math.inf) -> int:
        """Write gathered rows; begin no partition later than `within_s`. Return the rows left."""
        end_s = self._now_s() + within_s
        for source, gathered in self._gathered.items():
            if gathered.records and self._now_s() < end_s:
                self._write(source, gathered)
        return sum(each.rows for each in self._gathered.values())

    def _begin(self, source: Source) -> None:
        topic_id = self._reader.topic_id(source.topic)
        start = self._folder.resume(source, topic_id)
        first, end = self._reader.bounds(source, start or 0)
        if start is not None and not first <= start <= end:
            raise ArchiveError(
                f"{source.topic}/{source.partition}: expected to continue at offset {start}, got "
                f"offsets {first} to {end}: retention removed the records between"
            )
        start = first if start is None else start
        self._gathered[source] = _Gathered(start, topic_id, stop=start)
        self._continuity.forget(source)
        self._reader.start({source: start})

    def _take(self, record: Record) -> None:
        gathered = self._gathered[record.source]
        rows = 1
        if record.source.topic == self._examples:
            counted_batch = self._messages.decoded(record, _counted_batch)
            if counted_batch is None:
                gathered.stop = record.offset + 1
                self._continuity.forget(record.source)
                return
            before, rows = counted_batch
            self._continuity.warn(record, before, rows)
        if not gathered.records:
            gathered.since_s = self._now_s()
        gathered.records.append(record)
        gathered.stop = record.offset + 1
        gathered.rows += rows

    def _write(self, source: Source, gathered: _Gathered) -> None:
        make = example_table if source.topic == self._examples else event_table
        table = make(gathered.records)
        self._folder.write(source, gathered.topic_id, gathered.start, gathered.stop, by_hour(table))
        self._wrote(source.topic, table.num_rows)
        log.info(
            "%s/%d: %s of offsets %d to %d",
            *(source.topic, source.partition, counted(table.num_rows, "row")),
            *(gathered.start, gathered.stop - 1),
        )
        gathered.start, gathered.rows = gathered.stop, 0
        gathered.records.clear()


def rows_written(registry: CollectorRegistry) -> Counter:
    """Return the counter of rows written."""
    return Counter("headrace_sink_rows", "Rows written to Parquet.", ("topic",), registry=registry)


def full_of(registry: CollectorRegistry) -> Gauge:
    """Return the gauge of a folder without room."""
    text = "1 while the folder is full and the sink waits, else 0."
    return Gauge("headrace_sink_full", text, registry=registry)


def run_archiver(
    settings: ArchiveSettings,
    kafka: KafkaSettings,
    model: str | None,
    url: str,
    stop: threading.Event,
    topics: EventTopics | None = None,
) -> None:
    """Write the topics of events, and the examples of a model if one is named, until `stop`.

    Raises ArchiveError and the errors of ingest.errors.
    """
    topics = topics or EventTopics()
    names = [topics.impressions, topics.clicks]
    examples = examples_topic(model) if model is not None else None
    registry = CollectorRegistry()
    rows = rows_written(registry)
    folder = ArchiveFolder(url)
    reader = KafkaReader(kafka, None, [*names, examples] if examples else names)
    metrics = settings.metrics_host, settings.metrics_port
    try:
        archiver = Archiver(
            reader,
            folder,
            examples,
            settings,
            wrote=lambda topic, count: rows.labels(topic).inc(count),
            stopping=stop.is_set,
        )
        lag = ReadLag("headrace_sink_lag")
        lag.follow(LogBounds(kafka), archiver.positions)
        full_of(registry).set_function(lambda: archiver.full)
        with running_process(
            "sink", status_in(kafka), registry, metrics, collectors=[lag]
        ) as health:
            # a full folder is no hang: a restart would not make room
            health.watch(lag.progress, lambda: not archiver.full and lag.behind())
            while not stop.is_set():
                if not archiver.step(0.2):
                    stop.wait(_FULL_RETRY_S)
                health.stepped()
            try:
                if left := archiver.finish(_LAST_WRITES_S):
                    log.info("stopped; %s will be read again", counted(left, "row"))
            except ArchiveFull as error:
                log.warning("%s: stopped; the rows since the last file will be read again", error)
    finally:
        reader.close()
        folder.close()
