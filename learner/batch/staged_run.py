"""The staged files of a fit into a parameter server, and the description of the run.

    FOLDER/_stage/NAME/part-00000.parquet     examples of the model NAME, packed (`staged_file`)
    FOLDER/_stage/NAME/run.json               the run, written after the last file

Without `run.json`, staging was interrupted and begins again: nothing is learned before it exists.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import fsspec
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.learner.batch.sources import FilePosition, UnreadableData
from headrace.learner.batch.staged_file import STAGED, staged

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from headrace.learner.batch.sources import BatchSource
    from headrace.learner.spec import ModelSpec

_STAGE = "_stage"
_DESCRIPTION = "run.json"


class StagedRun(msgspec.Struct, frozen=True):
    """A run whose examples are staged."""

    fingerprint: str
    """Of the spec."""
    source: str
    """The identity of the source."""
    token: str
    """Names the run in the parameter server and in the marks."""
    rows: list[int]
    """Of each file."""
    marks: dict[str, int]
    """Of the source: where learners continue."""
    refused: int
    """Rows that the source left out."""


class StageFolder:
    """The folder of one model's staged run."""

    def __init__(self, url: str, name: str) -> None:
        self._files, root = fsspec.core.url_to_fs(url)
        self._path = f"{root.rstrip('/')}/{_STAGE}/{name}"

    def read(self, spec: ModelSpec, source: str) -> StagedRun | None:
        """Return the staged run; None if there is no such run.

        Raises UnreadableData if it is of another spec or other data.
        """
        path = f"{self._path}/{_DESCRIPTION}"
        if not self._files.exists(path):
            return None
        run = msgspec.json.decode(self._files.cat_file(path), type=StagedRun)
        for what, found, expected in (
            ("spec", run.fingerprint, spec.fingerprint),
            ("data", run.source, source),
        ):
            if found != expected:
                raise UnreadableData(
                    f"{path}: expected the unfinished fit of this {what}, got one of another "
                    f"{what}. Give --to another folder, or start again with --restart"
                )
        return run

    @property
    def token(self) -> str:
        """The token of the staged run, whatever its spec and data; empty without one."""
        path = f"{self._path}/{_DESCRIPTION}"
        if not self._files.exists(path):
            return ""
        return msgspec.json.decode(self._files.cat_file(path), type=StagedRun).token

    def stage(
        self,
        spec: ModelSpec,
        source: BatchSource,
        rows_a_file: int,
        stop: threading.Event,
        tell: Callable[[float], object],
    ) -> StagedRun | None:
        """Write the examples of a source; return None if `stop` was set. `tell` gets the share."""
        self.remove()
        self._files.makedirs(self._path)
        rows: list[int] = []
        waiting: list[tuple[int, bytes]] = []
        for block in source.blocks(FilePosition()):
            waiting += staged(block.examples)
            if sum(count for count, _ in waiting) >= rows_a_file:
                rows.append(self._write(len(rows), waiting))
                waiting = []
            tell(block.read)
            if stop.is_set():
                return None
        if waiting:
            rows.append(self._write(len(rows), waiting))
        token, marks = secrets.token_hex(4), dict(source.marks)
        run = StagedRun(spec.fingerprint, source.identity, token, rows, marks, source.refused)
        aside = f"{self._path}/{_DESCRIPTION}.new"
        self._files.pipe_file(aside, msgspec.json.encode(run))
        self._files.mv(aside, f"{self._path}/{_DESCRIPTION}")
        return run

    def urls(self, run: StagedRun) -> list[str]:
        """Return the files of a run."""
        return [self._files.unstrip_protocol(self._file(number)) for number in range(len(run.rows))]

    def remove(self) -> None:
        """Remove the run."""
        description = f"{self._path}/{_DESCRIPTION}"
        if self._files.exists(description):  # first: the files alone are no run
            self._files.rm_file(description)
        if self._files.exists(self._path):
            self._files.rm(self._path, recursive=True)

    def _file(self, number: int) -> str:
        return f"{self._path}/part-{number:05}.parquet"

    def _write(self, number: int, batches: list[tuple[int, bytes]]) -> int:
        counts, blobs = zip(*batches, strict=True)
        arrays = [pa.array(counts, pa.int64()), pa.array(blobs, pa.binary())]
        with self._files.open(self._file(number), "wb") as opened:
            pq.write_table(pa.table(arrays, schema=STAGED), opened, compression="zstd")
        return int(sum(counts))
