"""Surveys one log: a directory of NDJSON, or a file with a layout."""

import difflib
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.ingest.events.contract import Reason
from headrace.ingest.features.field_sources import carried_fields
from headrace.ingest.features.fields import FieldSet
from headrace.ingest.logs.layout import LogLayout
from headrace.ingest.logs.ndjson import CLICKS, IMPRESSIONS, path_of
from headrace.ingest.logs.opening import open_log
from headrace.ingest.logs.table_log import TableLog
from headrace.ingest.runtime.clock import wall_ms
from headrace.ingest.survey.event_tallies import ClickTally, OrderTally, RefusalTally, RepeatedIds
from headrace.ingest.survey.findings import (
    EventOrder,
    FieldCoverage,
    LogSurvey,
    RefusedEvents,
)
from headrace.ingest.survey.ndjson_survey import LineReader
from headrace.ingest.survey.table_survey import TableReader

LEAST_ALIKE = 0.7
"""Likeness of two names, from 0 to 1, from which one may be the other misspelt."""


def survey_log(
    path: Path,
    fields: FieldSet,
    layout: LogLayout | None = None,
    *,
    now_ms: int | None = None,
    sort: bool = False,
) -> LogSurvey:
    """Read a log once and return what a joiner of these fields would find in it.

    now_ms: the time of a replay, by which times are in the future. sort: the replay will sort the
    log, so no impression comes too late. Raises NoEventsError, SpecError.
    """
    began_s = time.monotonic()
    log = open_log(path, layout)
    survey = _Survey(path, fields, wall_ms() if now_ms is None else now_ms, sort)
    if isinstance(log, TableLog):
        survey.read_table(log)
    else:
        survey.read_directory()
    return survey.result(log.bytes_total, time.monotonic() - began_s)


class _Survey:
    def __init__(self, path: Path, fields: FieldSet, now_ms: int, sort: bool) -> None:
        self._path, self._fields, self._now_ms, self._sort = path, fields, now_ms, sort
        window_ms = fields.label.window_ms
        self._refused = RefusalTally()
        self._order, self._clicks_of = OrderTally(window_ms), ClickTally(window_ms)
        self._repeated = RepeatedIds()
        self._coverage = [
            FieldCoverage(each.name, each.source, str(each.transform))
            for each in carried_fields(fields)
        ]
        self._impressions = self._clicks = self._accepted = self._readable = 0
        self._names: set[str] = set()
        self._unread_clicks, self._unread_advice = 0, ""
        self._click_column: str | None = None
        self._click_words = ""

    def read_directory(self) -> None:
        """Read all clicks, then all impressions."""
        clicks = LineReader(path_of(self._path, CLICKS), None, self._refused)
        for block in clicks.blocks((), self._now_ms):
            self._clicks += block.lines
            self._clicks_of.add_clicks(block.hashes, block.times)
        self._clicks_of.begin()
        impressions = LineReader(path_of(self._path, IMPRESSIONS), self._fields, self._refused)
        for block in impressions.blocks(self._coverage, self._now_ms):
            self._impressions += block.lines
            self._names |= block.names
            kept = self._in_time(block.times, block.places, impressions)
            self._repeated.add(block.hashes[kept])
            self._clicks_of.add_impressions(block.hashes[kept], block.times[kept])

    def read_table(self, log: TableLog) -> None:
        """Read all rows."""
        table = TableReader(log, self._refused)
        for block in table.blocks(self._coverage, self._now_ms):
            self._impressions += block.rows
            self._clicks += block.clicks
            self._names |= block.names
            kept = self._in_time(block.times, block.places, table)
            if block.hashes is not None:
                self._repeated.add(block.hashes[kept])
            pairs = kept & block.has_click
            self._clicks_of.add_pairs(block.times[pairs], block.clicked[pairs])
        self._unread_clicks, self._unread_advice = table.unread_clicks, table.unread_advice
        click = log.layout.click
        self._click_column = click.column if click is not None else None
        self._click_words = table.words.in_words()

    def _in_time(
        self,
        times: npt.NDArray[np.int64],
        places: npt.NDArray[np.int64],
        reader: LineReader | TableReader,
    ) -> npt.NDArray[np.bool_]:
        """Count the impressions that are too late for the joiner; return which are not."""
        too_late = self._order.add(times)
        if self._sort:
            too_late[:] = False
        count = int(np.count_nonzero(too_late))
        self._accepted += times.shape[0] - count
        self._readable += times.shape[0]
        if count and self._refused.knows(Reason.TOO_LATE):
            self._refused.add(RefusedEvents(Reason.TOO_LATE, count))
        elif count:
            place = int(places[np.argmax(too_late)])
            where, text = reader.find(place)
            self._refused.add(RefusedEvents(Reason.TOO_LATE, count, where, text))
        return ~too_late

    def result(self, bytes_total: int, seconds: float) -> LogSurvey:
        """Return the findings."""
        declared = {each.source for each in self._coverage}
        others = sorted(self._names - declared)
        for each in self._coverage:
            if not each.present:
                close = difflib.get_close_matches(each.source, others, 1, LEAST_ALIKE)
                each.hint = next(iter(close), "")
        return LogSurvey(
            path=str(self._path),
            impressions=self._impressions,
            clicks=self._clicks,
            window_ms=self._fields.label.window_ms,
            first_ms=self._order.first_ms,
            last_ms=self._order.last_ms,
            refused=self._refused.result(),
            fields=tuple(self._coverage),
            order=EventOrder() if self._sort else self._order.result(),
            joined=self._clicks_of.result(),
            repeated_ids=self._repeated.result(),
            seconds=round(seconds, 3),
            bytes_read=bytes_total,
            unread_clicks=self._unread_clicks,
            unread_advice=self._unread_advice,
            click_column=self._click_column,
            click_words=self._click_words,
            accepted=self._accepted,
            readable=self._readable,
        )
