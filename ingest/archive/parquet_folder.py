"""The folder of the archive: Parquet files by hour, each row in exactly one of them.

    TOPIC/hour=2026-11-21T08/PPPPP-FFFFFFFFFFFF.parquet   partition P, offsets from F on
    _progress/TOPIC/PPPPP.json                             topic id, first offset not yet written
    _writing/...                                           files under way; not for readers

A step writes some offsets of one partition, which may fall into several hours. Its files are
written aside and moved to their places; then the progress file makes them count. A restarted
archiver reads the progress and removes files that were moved and do not count. So no row is ever
there twice, even for a reader that ignores the progress. Common readers of such folders skip names
with an underscore.
"""

from __future__ import annotations

import errno
import fcntl
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING

import fsspec
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from headrace.ingest.errors import StreamError

if TYPE_CHECKING:
    from headrace.ingest.kafka.protocols import Source


class ArchiveError(StreamError):
    """A folder cannot be written, or has rows of another topic. Stop."""


class ArchiveFull(ArchiveError):
    """The folder has no room left."""


class ArchiveProgress(msgspec.Struct, frozen=True):
    """The progress of one partition."""

    topic_id: str
    stop: int
    """First offset not yet written."""


class ArchiveFolder:
    """A folder, or a location that fsspec reaches (s3://BUCKET/PATH).

    Raises ArchiveError if it cannot be written, or if another archiver on this machine uses it.
    """

    def __init__(self, url: str) -> None:
        self._stack = ExitStack()
        try:
            files, root = fsspec.core.url_to_fs(url)
            files.makedirs(root, exist_ok=True)
            if isinstance(files, LocalFileSystem):
                self._claim(Path(root))
        except (OSError, ImportError, ValueError) as error:
            self._stack.close()
            raise ArchiveError(f"expected a folder to write to at {url}, got: {error}") from error
        self._files, self._root = files, root.rstrip("/")
        self._remove(self._glob("_writing/*"))

    def resume(self, source: Source, topic_id: str) -> int | None:
        """Return the offset to continue from, None before the first write; remove later files.

        Raises ArchiveError if the topic was recreated since.
        """
        path = self._progress_path(source)
        progress = None
        if self._files.exists(path):
            progress = msgspec.json.decode(self._files.cat_file(path), type=ArchiveProgress)
            if progress.topic_id != topic_id:
                raise ArchiveError(
                    f"{path}: expected the topic {source.topic} with id {progress.topic_id}, got "
                    f"id {topic_id}: the topic was recreated. Choose another folder"
                )
        stop = progress.stop if progress else 0
        found = self._glob(f"{source.topic}/hour=*/{source.partition:05}-*.parquet")
        self._remove([path for path in found if first_offset(path) >= stop])
        return progress.stop if progress else None

    def write(
        self, source: Source, topic_id: str, start: int, stop: int, hours: Mapping[str, pa.Table]
    ) -> None:
        """Write the rows of offsets [start, stop), by hour.

        Raises ArchiveFull, after which the same call may succeed, and ArchiveError.
        """
        try:
            moves = []
            for hour, table in hours.items():
                name = f"{source.partition:05}-{start:012}.parquet"
                aside = f"{self._root}/_writing/{source.topic}-{hour}-{name}"
                self._files.makedirs(f"{self._root}/_writing", exist_ok=True)
                with self._files.open(aside, "wb") as file:
                    pq.write_table(table, file, compression="zstd")
                moves.append((aside, f"{self._root}/{source.topic}/hour={hour}/{name}"))
            for aside, path in moves:
                self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
                self._files.mv(aside, path)
            path = self._progress_path(source)
            aside = f"{self._root}/_writing/{source.topic}-{source.partition:05}.json"
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._files.makedirs(f"{self._root}/_writing", exist_ok=True)
            self._files.pipe_file(aside, msgspec.json.encode(ArchiveProgress(topic_id, stop)))
            self._files.mv(aside, path)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            kind = ArchiveFull if full else ArchiveError
            raise kind(f"expected to write to {self._root}, got: {error}") from error

    def close(self) -> None:
        """Release the folder."""
        self._stack.close()

    def _claim(self, root: Path) -> None:
        lock: IO[str] = self._stack.enter_context((root / "_in-use").open("w"))
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _progress_path(self, source: Source) -> str:
        return f"{self._root}/_progress/{source.topic}/{source.partition:05}.json"

    def _glob(self, pattern: str) -> list[str]:
        found: list[str] = self._files.glob(f"{self._root}/{pattern}")
        return found

    def _remove(self, paths: list[str]) -> None:
        for path in paths:
            self._files.rm_file(path)


def first_offset(path: str) -> int:
    """Return the offset from which a file has the records of its partition."""
    return int(path.rpartition("-")[2].removesuffix(".parquet"))
