"""Reads the examples that the archiver wrote, hour by hour, in the order of event time.

A partition's rows keep their order. Within an hour, the partitions are merged by the time of the
first row of each block. Rows that no progress file counts are not read.
"""

import heapq
from collections.abc import Iterator
from typing import NamedTuple

import fsspec
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.ingest.archive.parquet_folder import ArchiveError, ArchiveProgress, first_offset
from headrace.ingest.examples.batch import Examples, examples_of
from headrace.ingest.features.fields import FieldSet

_ROWS_A_BLOCK = 16_384


class ArchivedHour(NamedTuple):
    """The files of one hour, in the order of partitions and offsets."""

    hour: str
    files: tuple[str, ...]
    size: int
    """Bytes of all files."""


class ExampleArchive:
    """The examples of one topic in a folder of the archiver. Raises ArchiveError."""

    def __init__(self, url: str, topic: str, fields: FieldSet) -> None:
        """`url`: the archiver's folder, or a URL that fsspec knows."""
        self._fields = fields
        self._where = f"{url}: {topic}"
        try:
            self._files, root = fsspec.core.url_to_fs(url)
            self._root, self.topic = root.rstrip("/"), topic
            self._progress = self._read_progress()
        except ArchiveError:
            raise
        except Exception as error:  # each kind of storage has its own errors
            reason = str(error) or type(error).__name__
            raise ArchiveError(
                f"{url}: expected a folder, or a URL that can be read, got: {reason}. Correct the "
                "URL, or install the package for such URLs (for s3://: pip install 'headrace[s3]')"
            ) from error
        if not self._progress:
            raise ArchiveError(
                f"{url}: expected examples in {topic}, as `headrace ingest sink --model` writes "
                "them, got no such folder"
            )
        self.hours = self._list_hours()

    @property
    def marks(self) -> dict[str, int]:
        """Topic id/partition -> the first offset that the archive does not have."""
        return {
            f"{progress.topic_id}/{partition}": progress.stop
            for partition, progress in self._progress.items()
        }

    def rows_of(self, hour: ArchivedHour) -> int:
        """Return the number of examples of an hour."""
        rows = 0
        for path in hour.files:
            with self._files.open(path, "rb") as file:
                rows += pq.read_metadata(file).num_rows
        return rows

    def blocks(self, hour: ArchivedHour) -> Iterator[Examples]:
        """Yield the examples of an hour."""
        by_partition: dict[str, list[str]] = {}
        for path in hour.files:
            by_partition.setdefault(_partition_of(path), []).append(path)
        queue: list[tuple[int, str, Examples, Iterator[Examples]]] = []
        for partition, paths in sorted(by_partition.items()):
            _put(queue, partition, self._examples(paths))
        while queue:
            _, partition, examples, rest = heapq.heappop(queue)
            yield examples
            _put(queue, partition, rest)

    def _examples(self, paths: list[str]) -> Iterator[Examples]:
        for path in paths:
            with self._files.open(path, "rb") as file, pq.ParquetFile(file) as table:
                for batch in table.iter_batches(_ROWS_A_BLOCK):
                    yield self._unpacked(path, batch)

    def _unpacked(self, path: str, batch: pa.RecordBatch) -> Examples:
        fields, facts = self._fields, batch.schema.metadata or {}
        found = facts.get(b"fingerprint", b"none").decode()
        if found != fields.fingerprint:
            raise ArchiveError(
                f"{path}: expected examples of fields with fingerprint {fields.fingerprint} (of "
                f"the model spec in use), got {found}"
            )
        widths = batch["ids"].type.list_size, batch["numbers"].type.list_size
        expected = len(fields.singles), len(fields.numbers)
        if widths != expected:
            raise ArchiveError(
                f"{path}: expected examples of {expected[0]} ids and {expected[1]} numbers, as the "
                f"model spec in use says, got {widths[0]} and {widths[1]}"
            )
        rate = float(facts[b"negative_rate"])
        times = batch["timestamp_ms"].to_numpy()
        watermark_ms = int(times.max(initial=0))
        return examples_of(batch, fields, times, watermark_ms=watermark_ms, negative_rate=rate)

    def _read_progress(self) -> dict[int, ArchiveProgress]:
        paths = self._files.glob(f"{self._root}/_progress/{self.topic}/*.json")
        return {
            int(_partition_of(path)): msgspec.json.decode(
                self._files.cat_file(path), type=ArchiveProgress
            )
            for path in sorted(paths)
        }

    def _list_hours(self) -> list[ArchivedHour]:
        hours: dict[str, list[str]] = {}
        for path in sorted(self._files.glob(f"{self._root}/{self.topic}/hour=*/*.parquet")):
            progress = self._progress.get(int(_partition_of(path)))
            if progress is not None and first_offset(path) < progress.stop:
                hours.setdefault(path.split("/")[-2], []).append(path)
        return [
            ArchivedHour(hour, tuple(paths), sum(self._files.size(path) for path in paths))
            for hour, paths in sorted(hours.items())
        ]


def _put(
    queue: list[tuple[int, str, Examples, Iterator[Examples]]],
    partition: str,
    blocks: Iterator[Examples],
) -> None:
    for examples in blocks:
        if len(examples):
            heapq.heappush(queue, (int(examples.event_ms[0]), partition, examples, blocks))
            return


def _partition_of(path: str) -> str:
    return path.rpartition("/")[2].partition("-")[0].removesuffix(".json")
