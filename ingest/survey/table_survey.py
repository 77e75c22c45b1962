"""Surveys a table with a layout, column by column: the joiner's rules on Arrow arrays.

The columns of a row decide whether the joiner would refuse its events, so no event is made.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.ingest.decoding.decoder import hash_texts
from headrace.ingest.decoding.json_scanner import TEXT
from headrace.ingest.events.contract import Reason
from headrace.ingest.features.cells.labels import ClickWords
from headrace.ingest.features.cells.values import are_numbers, are_untyped, is_list
from headrace.ingest.features.fields import Transform
from headrace.ingest.logs.layout import BagLayout
from headrace.ingest.logs.table_file import TableBlock, UnreadableRow
from headrace.ingest.logs.table_log import TableLog
from headrace.ingest.survey.event_tallies import RefusalTally
from headrace.ingest.survey.findings import FieldCoverage, RefusedEvents, shortened
from headrace.ingest.survey.table_refusals import (
    odd_click,
    refused_rows,
    row_text,
    unreadable_line,
    untimely_rows,
)

Longs = npt.NDArray[np.int64]

_NUMBERS = (Transform.NUMBER, Transform.LOG_BUCKET)


class SurveyedRows(NamedTuple):
    """The events of a block of rows."""

    rows: int
    times: Longs
    """Of the impressions that are not refused; shape (n,)."""
    hashes: npt.NDArray[np.uint64] | None
    """Of their ids; None if row numbers are the ids."""
    places: Longs
    """Their row numbers, from 0; shape (n,)."""
    clicks: int
    has_click: npt.NDArray[np.bool_]
    """Whether each impression that is not refused has a click; shape (n,)."""
    clicked: Longs
    """Times of the clicks of these impressions; shape (n,), 0 without one."""
    names: set[str]
    """Names of the fields."""


class TableReader:
    """Reads one table."""

    def __init__(self, log: TableLog, refused: RefusalTally) -> None:
        self.log, self.path, self._refused = log, log.path, refused
        self.unread_clicks = 0
        """Rows whose column of click times has a value that is not a time."""
        self.unread_advice = ""
        self.words = ClickWords()

    def blocks(self, coverage: Sequence[FieldCoverage], now_ms: int) -> Iterator[SurveyedRows]:
        """Yield the events of each block of rows, adding to the coverage and the refusals."""
        for block in self.log.blocks():
            if isinstance(block, UnreadableRow):
                self._refused.add(unreadable_line(block, str(self.path)))
                yield _one_refused()
            elif block.rows:
                yield self._block(block, coverage, now_ms)

    def find(self, row: int) -> tuple[str, str]:
        """Return the place and the text, shortened, of the row with this number."""
        for block in self.log.blocks():
            if not isinstance(block, UnreadableRow) and row < block.first + block.rows:
                place = row - block.first
                return f"{self.path}, {block.place(place)}", row_text(block, place)
        return str(self.path), ""

    def _block(
        self, block: TableBlock, coverage: Sequence[FieldCoverage], now_ms: int
    ) -> SurveyedRows:
        times = self.log.times(block)
        clicks, odd = self.log.clicks(block, times)
        shown_ms = pc.fill_null(times, 0).to_numpy(zero_copy_only=False)
        hashes, no_id = self._ids(block)
        good = np.ones(block.rows, np.bool_)
        columns = self.log.layout.field_columns(list(block.arrow))
        fields = self.log.fields(block)
        nested = np.full(block.rows, any(map(_is_nested, fields.values())))
        for reason, wrong in (
            *untimely_rows(times, now_ms),
            (Reason.BAD_ID, no_id),
            (Reason.NESTED, nested),
        ):
            self._refuse(reason, wrong & good, block)
            good &= ~wrong
        of_texts = self.log.layout.format_of(self.path) == "csv"
        for each in coverage:
            _cover(each, fields, columns, good)
            if each.transform == Transform.ID and of_texts and each.source in fields:
                _look_for_untyped(each, fields[each.source], good)
        clicked = clicks.is_valid().to_numpy(zero_copy_only=False)
        click = self.log.layout.click
        if odd.any() and click is not None:
            if not self.unread_clicks:
                place = int(np.argmax(odd))
                event = self.log.layout.event
                self.unread_advice = odd_click(block, event, str(click.timestamp), place)
            self.unread_clicks += int(np.count_nonzero(odd))
        if click is not None and click.column in block.arrow:
            self.words.add(block.arrow[click.column])
        clicked_ms = pc.fill_null(clicks, 0).to_numpy(zero_copy_only=False)
        return SurveyedRows(
            block.rows,
            shown_ms[good],
            None if hashes is None else hashes[good],
            np.flatnonzero(good) + block.first,
            int(np.count_nonzero(clicked)),
            clicked[good],
            clicked_ms[good],
            set(fields),
        )

    def _ids(
        self, block: TableBlock
    ) -> tuple[npt.NDArray[np.uint64] | None, npt.NDArray[np.bool_]]:
        texts = self.log.ids(block)
        if texts is None:
            return None, np.zeros(block.rows, np.bool_)
        texts = pa.concat_arrays([texts])  # offsets from 0
        _, offsets, data = texts.buffers()
        bounds = np.frombuffer(offsets, np.int32)[: block.rows + 1].astype(np.int64)
        begins, ends = bounds[:-1], bounds[1:]
        values = np.frombuffer(data, np.uint8) if data is not None else np.zeros(1, np.uint8)
        hashes = np.empty(block.rows, np.uint64)
        hash_texts(values, np.full(block.rows, TEXT, np.uint8), begins, ends, hashes)
        return hashes, begins == ends

    def _refuse(self, reason: Reason, wrong: npt.NDArray[np.bool_], block: TableBlock) -> None:
        if not wrong.any():
            return
        if self._refused.knows(reason):
            self._refused.add(RefusedEvents(reason, int(np.count_nonzero(wrong))))
            return
        event = self.log.layout.event
        self._refused.add(refused_rows(reason, wrong, block, event, str(self.path)))


def _cover(
    each: FieldCoverage,
    fields: dict[str, pa.Array],
    columns: dict[str, str | BagLayout],
    good: npt.NDArray[np.bool_],
) -> None:
    values = fields.get(each.source)
    if values is None:
        return
    column = columns.get(each.source, each.source)
    each.column = column.column if isinstance(column, BagLayout) else column
    present = good & values.is_valid().to_numpy(zero_copy_only=False)
    each.present += int(np.count_nonzero(present))
    listed = is_list(values.type)
    wrong = np.zeros(len(values), np.bool_)
    if each.transform == Transform.BAG and not listed:
        each.single += int(np.count_nonzero(present))
        each.example = each.example or _value(values, present)
    elif each.transform in _NUMBERS and not listed:
        wrong = present & ~are_numbers(values)
    elif each.transform != Transform.BAG and listed:
        wrong = present
    if count := int(np.count_nonzero(wrong)):
        each.unusable += count
        each.example = each.example or _value(values, wrong)


def _look_for_untyped(each: FieldCoverage, values: pa.Array, good: npt.NDArray[np.bool_]) -> None:
    """Count the texts that a data frame wrote of whole numbers and flags."""
    wrong = are_untyped(values) & good
    if count := int(np.count_nonzero(wrong)):
        each.untyped += count
        each.example = each.example or _value(values, wrong)


def _value(values: pa.Array, chosen: npt.NDArray[np.bool_]) -> str:
    return shortened(str(values[int(np.argmax(chosen))].as_py())) if chosen.any() else ""


def _is_nested(values: pa.Array) -> bool:
    kind = values.type
    return bool(pa.types.is_nested(kind.value_type if is_list(kind) else kind))


def _one_refused() -> SurveyedRows:
    none = np.zeros(0, np.int64)
    return SurveyedRows(1, none, None, none, 0, none.astype(np.bool_), none, set())
