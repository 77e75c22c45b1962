"""Surveys a table with a layout, column by column: the joiner's rules on Arrow arrays.

The columns of a row decide whether the joiner would refuse its events, so no event is made.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import pyarrow.types as pt

from headrace.ingest.features.cells.labels import ClickWords
from headrace.ingest.features.cells.values import are_numbers, are_untyped, is_list
from headrace.ingest.features.fields import Transform
from headrace.ingest.features.hashing import hash_strings
from headrace.ingest.logs.decimal_commas import are_grouped
from headrace.ingest.logs.layout import BagLayout
from headrace.ingest.logs.table_file import TableBlock, UnreadableRow
from headrace.ingest.logs.table_log import LogRows, TableLog
from headrace.ingest.survey.event_tallies import RefusalTally
from headrace.ingest.survey.findings import FieldCoverage, FieldValues, SurveyedEvents
from headrace.ingest.survey.table_refusals import refusals_of, row_text, unreadable_line


class TableReader:
    """Reads one table."""

    def __init__(self, log: TableLog, refused: RefusalTally) -> None:
        self.log, self.path, self._refused = log, log.path, refused
        self.words = ClickWords()

    def blocks(self, coverage: Sequence[FieldCoverage], now_ms: int) -> Iterator[SurveyedEvents]:
        """Yield the events of each block of rows, adding to the coverage and the refusals."""
        for block in self.log.blocks():
            if isinstance(block, UnreadableRow):
                self._refused.add(unreadable_line(block, str(self.path)))
                none = np.zeros(0, np.int64)
                yield SurveyedEvents(1, set(), none, None, lambda _: ("", ""))
            elif block.rows:
                yield self._block(block, coverage, now_ms)

    def _block(
        self, block: TableBlock, coverage: Sequence[FieldCoverage], now_ms: int
    ) -> SurveyedEvents:
        rows, layout = self.log.rows_of(block), self.log.layout
        good, refused = refusals_of(rows, layout, now_ms, str(self.path))
        for each in refused:
            self._refused.add(each)
        count_values(coverage, rows, good, self.log)
        if layout.click is not None and layout.click.column in block.arrow:
            self.words.add(block.arrow[layout.click.column])
        kept = np.flatnonzero(good)

        def show(place: int) -> tuple[str, str]:
            row = int(kept[place])
            return f"{self.path}, {block.place(row)}", row_text(block, row)

        return SurveyedEvents(
            block.rows,
            set(rows.fields),
            pc.fill_null(rows.times, 0).to_numpy(zero_copy_only=False)[good],
            None if rows.ids is None else hash_strings(rows.ids)[good],
            show,
            block.rows - rows.clicks.null_count,
            pc.fill_null(rows.clicks, 0).to_numpy(zero_copy_only=False)[good],
        )


def count_values(
    coverage: Sequence[FieldCoverage], rows: LogRows, good: npt.NDArray[np.bool_], log: TableLog
) -> None:
    """Count the values of fields in the rows that are `good`, as far as they matter."""
    columns = log.layout.field_columns(list(rows.block.arrow))
    of_texts = log.layout.format_of(log.path) == "csv"
    for field in coverage:
        if (values := rows.fields.get(field.source)) is None:
            continue
        named = columns.get(field.source, field.source)
        field.column = named.column if isinstance(named, BagLayout) else named
        listed = is_list(values.type)
        wanted = field.transform in (Transform.NUMBER, Transform.LOG_BUCKET) and not listed
        ids = of_texts and field.transform == Transform.ID and pt.is_string(values.type)
        field.count(
            FieldValues(
                good & values.is_valid().to_numpy(zero_copy_only=False),
                np.full(len(values), listed),
                are_numbers(values) if wanted else np.ones(len(values), np.bool_),
                lambda place, values=values: str(values[place].as_py()),  # type: ignore[misc]
                are_untyped(values) if ids else None,
                are_grouped(values).to_numpy(zero_copy_only=False) if ids else None,
            )
        )
