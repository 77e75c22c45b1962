"""Tables with a layout as the source of a fit: CSV, Parquet and NDJSON files.

A row is an example as soon as it is read, because its label is in the table: nothing is joined.
Malformed lines and rows without a usable time are refused with reason, count and example, as by the
joiner. A row also has no append time that bounds its event time. One row dated far ahead would be
the present of its buckets, and keepers would expire all other rows there. So a row may be at most a
day ahead of the moment when the source was opened.

One thread reads blocks, and up to eight threads encode them. Their order does not change.

A field whose column is missing has no value in any row, and a model learns without it. So the first
file must have a column for some field, and none that is nearly the name of a missing one, or the
fit ends at once. Other missing columns are logged: a column may begin in a later file. So are the
values in the first rows that a field cannot use, with the words of `headrace check`.
"""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.ingest.examples.batch import Examples
from headrace.ingest.features.field_sources import carried_fields
from headrace.ingest.logs.layout import LogLayout
from headrace.ingest.logs.table_file import TableBlock, UnreadableRow
from headrace.ingest.logs.table_log import LogRows, TableLog
from headrace.ingest.survey.findings import FieldCoverage
from headrace.ingest.survey.table_refusals import refusals_of, unreadable_line
from headrace.ingest.survey.table_survey import count_values
from headrace.learner.batch.data_files import data_files
from headrace.learner.batch.prefetch import in_order
from headrace.learner.batch.row_order import RowOrder
from headrace.learner.batch.sources import BatchSource, ExampleBlock, FilePosition, UnreadableData
from headrace.learner.local.table_examples import TableEncoder
from headrace.learner.spec.model_spec import ModelSpec
from headrace.runtime.affinity import available_cores
from headrace.runtime.clock import wall_ms

_log = logging.getLogger(__name__)

_MOST_THREADS = 8
"""Blocks wait for the learner in memory, up to two for each thread."""


class _ReadBlock(NamedTuple):
    """Rows as they were read, or a line that is not a row."""

    url: str
    log: TableLog
    rows: TableBlock | UnreadableRow
    after: FilePosition
    read: float
    begun: float


class TableSource(BatchSource):
    """Files of rows, in the order of their names."""

    def __init__(
        self,
        urls: list[str],
        layout: LogLayout,
        spec: ModelSpec,
        threads: int = 0,
        now_ms: int | None = None,
    ) -> None:
        """`urls`: paths or URLs that fsspec knows, with * and **. `threads`: those that encode;
        0: one per core, at most eight. `now_ms`: the time by which rows are ahead; None: now.

        Raises UnreadableData if one matches no file.
        """
        if layout.click is None:
            raise UnreadableData(
                "--layout: expected a [click] section, since a fit learns labels, got none. Write "
                "the layout into a file, and name the column of clicks in it: [click] column or "
                "timestamp"
            )
        self._files = [file for url in urls for file in data_files(url)]
        self._layout, self._fields = layout, spec.fields
        self._encoder = TableEncoder(spec.fields)
        self._threads = threads or min(available_cores(), _MOST_THREADS)
        self._now_ms = wall_ms() if now_ms is None else now_ms
        self._rows: list[int] | None = None
        self._checked_file = ""
        self._known: set[str] = set()
        """Columns of the files so far."""
        self._missing: set[str] = set()
        self._order_told = False

    @property
    def identity(self) -> str:
        """URLs and sizes of the files."""
        return " ".join(f"{each.url}:{each.size}" for each in self._files)

    def count(self) -> None:
        """Count the rows of all files: one more reading of CSV and NDJSON."""
        rows = []
        for each in self._files:
            with each.local() as path:
                blocks = TableLog(path, self._layout).blocks()
                rows.append(sum(block.rows for block in blocks if isinstance(block, TableBlock)))
        self._rows = rows

    def blocks(self, after: FilePosition) -> Iterator[ExampleBlock]:
        """Yield the blocks behind a position. Raises UnreadableData, SpecError."""
        return in_order(self._encoded, self._read_blocks(after), self._threads)

    def _read_blocks(self, after: FilePosition) -> Iterator[_ReadBlock]:
        for number in range(after.file, len(self._files)):
            file = self._files[number]
            with file.local() as path:
                log = TableLog(path, self._layout)
                rows = 0
                for count, block in enumerate(log.blocks(), 1):
                    begin = rows
                    if isinstance(block, TableBlock):
                        self._check_columns(block, file.url)
                        begin, rows = block.first, block.first + block.rows
                    if number == after.file and count <= after.block:
                        continue
                    shares = (self._read(number, log, end) for end in (rows, begin))
                    yield _ReadBlock(file.url, log, block, FilePosition(number, count), *shares)

    def _check_columns(self, block: TableBlock, url: str) -> None:
        """Compare the columns of the first block of a file with the fields and the files before.

        Raises UnreadableData.
        """
        if self._checked_file == url:
            return
        self._checked_file = url
        there = self._layout.field_columns(list(block.arrow))
        try:
            missing = self._encoder.lacking(there)
        except ValueError as error:
            hint = "[fields] in the layout names columns that differ from the spec"
            raise UnreadableData(f"{url}: {error}; {hint}") from error
        lost = sorted(self._known.intersection(missing))
        missing = [each for each in missing if each not in self._missing]
        self._known.update(there)
        self._missing.update(missing)
        # rows of NDJSON may lack a field for a while
        if lost and self._layout.format_of(Path(url)) != "ndjson":
            raise UnreadableData(
                f"{url}: expected the columns of the files before, got none for {', '.join(lost)}. "
                f"Its columns are {', '.join(sorted(there))}. Rename the column in this file, or "
                "fit the files apart"
            )
        if missing:
            _log.warning(
                "%s: expected a column for each field of the spec, got none for %s. The model "
                "learns without them as long as files lack them",
                *(url, ", ".join(missing)),
            )

    def _warn_of_values(self, log: TableLog, rows: LogRows, url: str) -> None:
        """Warn of values in the first rows that a field cannot use."""
        fields = carried_fields(self._fields)
        found = [FieldCoverage(each.name, each.source, each.transform) for each in fields]
        count_values(found, rows, np.ones(rows.block.rows, np.bool_), log)
        for warning in (each for field in found if field.present for each in field.warnings()):
            _log.warning("%s, first %s rows: %s", url, f"{rows.block.rows:,}", warning)

    def _read(self, number: int, log: TableLog, rows: int) -> float:
        """Return the share of the source that is read with these rows of a file."""
        if self._rows is not None:
            return (sum(self._rows[:number]) + rows) / max(sum(self._rows), 1)
        sizes = [each.size for each in self._files]
        done = log.bytes_read() / max(log.bytes_total, 1) * sizes[number]
        return (sum(sizes[:number]) + done) / max(sum(sizes), 1)

    def _encoded(self, read: _ReadBlock) -> ExampleBlock:
        url, log, block = read.url, read.log, read.rows
        if isinstance(block, UnreadableRow):
            nothing, line = Examples.empty(self._fields), unreadable_line(block, url)
            return ExampleBlock(nothing, read.after, read.read, (line,))
        rows = log.rows_of(block)
        if url == self._files[0].url and not block.first:
            self._warn_of_values(log, rows, url)
        good, refused = refusals_of(rows, self._layout, self._now_ms, url)
        clicks, times, columns = rows.clicks, rows.times, rows.fields
        if refused:
            kept = pa.array(good)
            clicks, times = clicks.filter(kept), times.filter(kept)
            columns = {name: values.filter(kept) for name, values in columns.items()}
        labels = pc.is_valid(clicks).cast(pa.uint8()).to_numpy()
        shown_ms = np.asarray(times.to_numpy(), np.int64)
        try:
            examples = self._encoder.examples(columns, shown_ms, labels, first=block.first)
        except (TypeError, ValueError) as error:
            raise UnreadableData(f"{url}, {block.place(0)} and after: {error}") from error
        self._warn_of_order(shown_ms, url)
        return ExampleBlock(examples, read.after, read.read, refused, read.begun, shown_ms)

    def _warn_of_order(self, times: npt.NDArray[np.int64], url: str) -> None:
        """Warn once of rows that come after a newer one: the fit may take hours."""
        if self._order_told:
            return
        late = RowOrder().after(times).disordered
        if late:
            self._order_told = True
            _log.warning(
                "%s: expected rows in order of time, got %s of %s rows after a newer one in the "
                "first such part. The fit learns rows in the order of the files: sort them by time",
                *(url, f"{late:,}", f"{times.shape[0]:,}"),
            )
