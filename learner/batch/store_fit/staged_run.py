"""The staged files of a fit into a parameter server, and the description of the run.

    FOLDER/_stage/NAME/part-00000.parquet     examples of the model NAME, packed (`staged_file`)
    FOLDER/_stage/NAME/run.json               the run, written after the last file
    FOLDER/_stage/NAME/decision.json          with held-out data: the last decision to go on or stop
    FOLDER/_stage/NAME/rows/2026…             the rows of the best epoch that it names

Without `run.json`, staging was interrupted and begins again: nothing is learned before it exists.
Held-out examples are in the last files, which no process learns with the others.
"""

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.ingest.examples.batch import Examples
from headrace.ingest.survey.findings import RefusedEvents
from headrace.learner.batch.fit_folder import ProgressFolder
from headrace.learner.batch.held_out_epochs import EpochDecision
from headrace.learner.batch.row_order import RowOrder
from headrace.learner.batch.sources import (
    BatchSource,
    FilePosition,
    UnfinishedFit,
    UnreadableData,
    check_same_fit,
    merged_refusals,
    mostly_refused,
    split_at,
)
from headrace.learner.batch.store_fit.staged_file import STAGED, staged, staged_examples
from headrace.learner.spec.model_spec import ModelSpec

_DESCRIPTION = "run.json"
_DECISION = "decision.json"


class StagedRun(UnfinishedFit, frozen=True):
    """A run whose examples are staged."""

    token: str
    """Names the run in the parameter server and in the marks."""
    rows: list[int]
    """Of each file."""
    marks: dict[str, int]
    """Of the source: where learners continue."""
    holdout: float = 0.0
    """Share of the examples, at their end, that is held out."""
    held_out: int = 0
    """Files with these examples: the last ones."""
    refusals: tuple[RefusedEvents, ...] = ()
    """The rows left out, by reason."""
    order: RowOrder = RowOrder()
    """Of all rows."""
    clicks: list[int] = msgspec.field(default_factory=list)
    """Examples with a click in each file."""

    @property
    def epoch_rows(self) -> list[int]:
        """Rows of each file that an epoch learns."""
        return self.rows[: len(self.rows) - self.held_out]

    def clicks_learned(self, epochs: int) -> int:
        """Return the clicks of some epochs and of the examples held out."""
        files = len(self.epoch_rows)
        return epochs * sum(self.clicks[:files]) + sum(self.clicks[files:])


class StageFolder(ProgressFolder):
    """The folder of one model's staged run."""

    def __init__(self, url: str, name: str) -> None:
        """`name`: of the model. Raises StorageFailed."""
        super().__init__(url, "_stage", name)

    def read(self, spec: ModelSpec, source: str, holdout: float = 0.0) -> StagedRun | None:
        """Return the staged run; None if there is no such run.

        Raises UnreadableData if it is of another spec, other data, or holds out another share.
        """
        run = self._read(_DESCRIPTION, StagedRun)
        if run is None:
            return None
        path = f"{self._path}/{_DESCRIPTION}"
        if run.holdout != holdout:
            raise UnreadableData(
                f"{path}: expected the unfinished fit with --holdout {holdout}, got one with "
                f"{run.holdout}. Give the same share on all machines, or start again with --restart"
            )
        check_same_fit(path, run, spec, source)
        return run

    @property
    def token(self) -> str:
        """The token of the staged run, whatever its spec and data; empty without one."""
        run = self._read(_DESCRIPTION, StagedRun)
        return "" if run is None else run.token

    def stage(
        self,
        spec: ModelSpec,
        source: BatchSource,
        rows_a_file: int,
        stop: threading.Event,
        tell: Callable[[float], object],
        holdout: float = 0.0,
    ) -> StagedRun | None:
        """Write the examples of a source; return None if `stop` was set. `tell` gets the share.

        Raises UnreadableData if more than half of the rows are refused.
        """
        self.remove()
        self._files.makedirs(self._path)
        if holdout:
            source.count()  # makes `block.read` an exact share
        files = _StagedFiles(self._write)
        first_held_out: int | None = None
        refusals: tuple[RefusedEvents, ...] = ()
        order = RowOrder()
        for block in split_at(1.0 - holdout, source.blocks(FilePosition())):
            if holdout and first_held_out is None and block.read > 1.0 - holdout:
                files.end_file()
                first_held_out = len(files.rows)
            refusals = merged_refusals(refusals, block.refusals)
            order = order if block.times is None else order.after(block.times)
            files.add(block.examples)
            if files.waiting_rows >= rows_a_file:
                files.end_file()
            tell(block.read)
            if stop.is_set():
                return None
        files.end_file()
        if too_many := mostly_refused(refusals, sum(files.rows)):
            self.remove()
            raise too_many
        run = StagedRun(
            fingerprint=spec.fingerprint,
            source=source.identity,
            token=secrets.token_hex(4),
            rows=files.rows,
            marks=dict(source.marks),
            holdout=holdout,
            held_out=0 if first_held_out is None else len(files.rows) - first_held_out,
            refusals=refusals,
            order=order,
            clicks=files.clicks,
        )
        self._replace(_DESCRIPTION, run)
        return run

    def decision(self, run: StagedRun) -> EpochDecision:
        """Return the last decision; it has ended if the run is gone, by its end or a restart."""
        if self.token != run.token:
            return EpochDecision(ended=True)
        return self._read(_DECISION, EpochDecision) or EpochDecision()

    def decide(self, decision: EpochDecision) -> None:
        """Write a decision, and remove rows that it does not name."""
        self._replace(_DECISION, decision, {decision.rows})

    def held_out(self, run: StagedRun, spec: ModelSpec) -> Iterator[Examples]:
        """Yield the held-out examples in their order."""
        for url in self.urls(run)[len(run.epoch_rows) :]:
            yield from staged_examples(url, spec.fields)

    def urls(self, run: StagedRun) -> list[str]:
        """Return the files of a run."""
        return [self._files.unstrip_protocol(self._file(number)) for number in range(len(run.rows))]

    def remove(self) -> None:
        """Remove the run."""
        self._remove(_DESCRIPTION)  # first: the files alone are no run

    def _file(self, number: int) -> str:
        return f"{self._path}/part-{number:05}.parquet"

    def _write(self, number: int, batches: Sequence[tuple[int, bytes]]) -> None:
        counts, blobs = zip(*batches, strict=True)
        arrays = [pa.array(counts, pa.int64()), pa.array(blobs, pa.binary())]
        with self._files.open(self._file(number), "wb") as opened:
            pq.write_table(pa.table(arrays, schema=STAGED), opened, compression="zstd")


class _StagedFiles:
    """The files of a run that is being staged."""

    def __init__(self, write: Callable[[int, Sequence[tuple[int, bytes]]], None]) -> None:
        """`write` gets the number and the batches of a file."""
        self._write = write
        self.rows: list[int] = []
        """Of each file."""
        self.clicks: list[int] = []
        """Examples with a click in each file."""
        self.waiting_rows = 0
        """Of the next file."""
        self._waiting: list[tuple[int, bytes]] = []
        self._waiting_clicks = 0

    def add(self, examples: Examples) -> None:
        """Add examples to the next file."""
        self._waiting += staged(examples)
        self.waiting_rows += len(examples)
        self._waiting_clicks += int(np.count_nonzero(examples.labels))

    def end_file(self) -> None:
        """Write the file, unless nothing waits for it."""
        if not self._waiting:
            return
        self._write(len(self.rows), self._waiting)
        self.rows.append(self.waiting_rows)
        self.clicks.append(self._waiting_clicks)
        self._waiting, self.waiting_rows, self._waiting_clicks = [], 0, 0
