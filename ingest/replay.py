"""Files into Kafka: a log of events replayed as it happened, or as fast as the pipeline follows.

A directory holds `impressions.ndjson` and `clicks.ndjson`, plain or with `.zst`, each in order of
time; the two are merged by event time, line by line, so that a week need not fit in memory. Lines
travel as they are: only `impression_id` (the key) and `timestamp_ms` (the order) are looked at. A
line without them is sent all the same, by chance to some partition, and ends as a dead letter.

Original times are kept. What makes them mean something at any speed is ticks: events with a time
and nothing else, sent to every partition from time to time, so that a partition nothing happens in
is known to have reached it, and after the last event one past the label window, so that every
window closes.
"""

from __future__ import annotations

import heapq
import io
import time
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, cast

import msgspec
import zstandard

from ingest.errors import StreamError
from ingest.kafka_writer import BY_KEY, KafkaWriter
from ingest.stream import Source
from ingest.topics import EventTopics, check_co_partitioned

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from ingest.settings import KafkaSettings
    from ingest.stream import Writer

_LINES_A_LOOK = 2_000
"""Between two looks at progress, lag, ticks and the stop: some 10 ms at full speed."""


class NoEventsError(StreamError):
    """A directory lacks its files."""


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """How fast to replay."""

    speed: float | None = None
    """Times real time; None: as fast as the pipeline follows."""
    lag_limit: int = 200_000
    """Events that may wait to be joined before replay waits: some seconds of work."""
    tick_interval_s: float = 0.5
    """Between ticks when paced, in wall time: so long an idle partition holds the others up."""
    linger_ms: int = 2
    """How long a message may wait for others to travel with."""


@dataclass(slots=True)
class DirectoryReplayed:
    """What one directory held."""

    directory: Path
    impressions: int = 0
    """Lines of the file, malformed ones too."""
    clicks: int = 0
    first_ms: int = 0
    """Event time of its first event."""
    last_ms: int = 0


@dataclass(slots=True)
class Replayed:
    """What was replayed."""

    directories: list[DirectoryReplayed] = field(default_factory=list)
    stopped: bool = False
    """Whether it was stopped before the end; then no last tick was sent."""

    @property
    def events(self) -> int:
        """Lines sent."""
        return sum(each.impressions + each.clicks for each in self.directories)


class Progress(NamedTuple):
    """Where a replay stands."""

    events: int
    event_ms: int
    """Event time reached."""
    bytes_read: int
    """Of the files as they lie on disk."""
    bytes_total: int


class _Head(msgspec.Struct):
    """What replay looks at in a line."""

    timestamp_ms: int | float
    impression_id: str | None = None


class _Line(NamedTuple):
    time_ms: int
    topic: str
    key: bytes | None
    value: bytes


def replay(
    kafka: KafkaSettings,
    directories: Sequence[Path],
    window_ms: int,
    stop: threading.Event,
    *,
    settings: ReplaySettings | None = None,
    topics: EventTopics | None = None,
    lag: Callable[[], int] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Replayed:
    """Send the events of each directory, one after another, then ticks past `window_ms`.

    `lag` returns how many events wait to be joined: replay at full speed keeps it within the limit.
    Returns early when `stop` is set. Raises NoEventsError, MissingTopic, TopicMismatch,
    KafkaUnreachable, WriteRefused.
    """
    paths = [_paths(directory) for directory in directories]
    settings, topics = settings or ReplaySettings(), topics or EventTopics()
    partitions = check_co_partitioned(kafka, [topics.impressions, topics.clicks])
    writer = KafkaWriter(kafka, linger_ms=settings.linger_ms)
    run = _Run(writer, settings, topics, partitions, stop, lag, progress)
    run.bytes_total = sum(path.stat().st_size for pair in paths for path in pair)
    try:
        for directory, (impressions, clicks) in zip(directories, paths, strict=True):
            run.send_directory(directory, impressions, clicks)
            if stop.is_set():
                run.replayed.stopped = True
                break
        else:
            run.tick(run.event_ms + window_ms + 1)
    finally:
        writer.close()
    run.report()
    return run.replayed


class _Run:
    """One replay under way."""

    def __init__(
        self,
        writer: Writer,
        settings: ReplaySettings,
        topics: EventTopics,
        partitions: int,
        stop: threading.Event,
        lag: Callable[[], int] | None,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self._writer, self._settings, self._topics = writer, settings, topics
        self._partitions, self._stop = partitions, stop
        self._lag, self._progress = lag, progress
        self._targets = {
            topic: Source(topic, BY_KEY) for topic in (topics.impressions, topics.clicks)
        }
        self._ticked_s = time.monotonic()
        self._bytes_before = 0  # of directories done
        self._files: list[BinaryIO] = []
        self.bytes_total = 0
        self.event_ms = 0
        self.replayed = Replayed()

    def send_directory(self, directory: Path, impressions: Path, clicks: Path) -> None:
        """Send the events of one directory in order of time."""
        totals = DirectoryReplayed(directory)
        self.replayed.directories.append(totals)
        self._files = [impressions.open("rb"), clicks.open("rb")]
        try:
            streams = [
                _lines(_text_of(file, path), topic)
                for file, path, topic in zip(
                    self._files, (impressions, clicks), self._targets, strict=True
                )
            ]
            # an impression goes before a click of the same time: merge keeps the order of streams
            merged = heapq.merge(*streams, key=itemgetter(0))
            if self._settings.speed is None:
                self._send_all(merged, totals)
            else:
                self._send_paced(merged, totals, self._settings.speed)
            self._bytes_before += sum(file.tell() for file in self._files)
        finally:
            for file in self._files:
                file.close()
            self._files = []

    def tick(self, time_ms: int) -> None:
        """Tell every partition of both topics that this time is reached."""
        if time_ms <= 0:
            return  # no line had a time yet
        value = msgspec.json.encode({"timestamp_ms": time_ms})
        for topic in self._targets:
            for partition in range(self._partitions):
                self._writer.send(Source(topic, partition), value)
        self._ticked_s = time.monotonic()

    def report(self) -> None:
        """Say where we stand."""
        if self._progress is not None:
            read = self._bytes_before + sum(file.tell() for file in self._files)
            self._progress(Progress(self.replayed.events, self.event_ms, read, self.bytes_total))

    def _send_all(self, lines: Iterator[_Line], totals: DirectoryReplayed) -> None:
        until_look = _LINES_A_LOOK
        for line in lines:
            self._send(line, totals)
            until_look -= 1
            if not until_look:
                until_look = _LINES_A_LOOK
                self.tick(self.event_ms)
                self.report()
                self._let_follow()
                if self._stop.is_set():
                    return

    def _let_follow(self) -> None:
        """Wait while more events wait to be joined than the limit."""
        if self._lag is None:
            return
        while self._lag() > self._settings.lag_limit and not self._stop.wait(0.02):
            self.report()

    def _send_paced(self, lines: Iterator[_Line], totals: DirectoryReplayed, speed: float) -> None:
        begun_s, first_ms = time.monotonic(), None
        for line in lines:
            if first_ms is None:
                first_ms = line.time_ms
            due_s = begun_s + (line.time_ms - first_ms) / 1000 / speed
            while (wait_s := due_s - time.monotonic()) > 0:
                if time.monotonic() - self._ticked_s > self._settings.tick_interval_s:
                    # the events up to now are all sent: time may pass where none was
                    self.tick(line.time_ms - int(wait_s * 1000 * speed) - 1)
                    self._writer.flush()
                    self.report()
                if self._stop.wait(min(wait_s, self._settings.tick_interval_s)):
                    return
            if self._stop.is_set():
                return
            self._send(line, totals)

    def _send(self, line: _Line, totals: DirectoryReplayed) -> None:
        if line.topic == self._topics.impressions:
            totals.impressions += 1
        else:
            totals.clicks += 1
        if line.time_ms:
            totals.first_ms = totals.first_ms or line.time_ms
            totals.last_ms = self.event_ms = line.time_ms
        self._writer.send(self._targets[line.topic], line.value, line.key)


def _lines(text: BinaryIO, topic: str) -> Iterator[_Line]:
    """Yield the lines of one file with keys and times; a time never goes back."""
    decode = msgspec.json.Decoder(_Head).decode
    time_ms = 0
    for line in text:
        value = line.rstrip(b"\r\n")
        if not value:
            continue
        key = None
        try:
            head = decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            pass  # sent all the same: the joiner says what is wrong with it
        else:
            time_ms = max(time_ms, int(head.timestamp_ms))
            key = head.impression_id.encode() if head.impression_id else None
        yield _Line(time_ms, topic, key, value)


def _text_of(file: BinaryIO, path: Path) -> BinaryIO:
    if path.suffix == ".zst":
        unpacked = zstandard.ZstdDecompressor().stream_reader(
            file, read_across_frames=True, closefd=False
        )
        return io.BufferedReader(cast("io.RawIOBase", unpacked), 1 << 20)
    return file


def _paths(directory: Path) -> tuple[Path, Path]:
    """Return the files of impressions and of clicks."""
    found = []
    for stem in ("impressions", "clicks"):
        there = [
            path
            for path in (directory / f"{stem}.ndjson.zst", directory / f"{stem}.ndjson")
            if path.is_file()
        ]
        if not there:
            raise NoEventsError(
                f"expected {stem}.ndjson or {stem}.ndjson.zst in {directory}, found neither"
            )
        found.append(there[0])
    return found[0], found[1]
