"""Surveys one log: a directory of NDJSON, or a file with a layout."""

import difflib
import time
from pathlib import Path

import numpy as np

from headrace.ingest.events.contract import Reason
from headrace.ingest.features.field_sources import LEAST_ALIKE, carried_fields
from headrace.ingest.features.fields import FieldSet
from headrace.ingest.logs.layout import LogLayout
from headrace.ingest.logs.ndjson import CLICKS, IMPRESSIONS, path_of
from headrace.ingest.logs.opening import open_log
from headrace.ingest.logs.table_log import TableLog
from headrace.ingest.survey.event_tallies import ClickTally, OrderTally, RefusalTally, RepeatedIds
from headrace.ingest.survey.findings import (
    EventOrder,
    FieldCoverage,
    LogSurvey,
    RefusedEvents,
    SurveyedEvents,
)
from headrace.ingest.survey.ndjson_survey import LineReader
from headrace.ingest.survey.table_survey import TableReader
from headrace.runtime.clock import wall_ms


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
        self._click_column: str | None = None
        self._click_words = ""

    def read_directory(self) -> None:
        """Read all clicks, then all impressions."""
        clicks = LineReader(path_of(self._path, CLICKS), None, self._refused)
        for block in clicks.blocks((), self._now_ms):
            self._clicks += block.events
            self._clicks_of.add_clicks(block)
        self._clicks_of.begin()
        impressions = LineReader(path_of(self._path, IMPRESSIONS), self._fields, self._refused)
        for block in impressions.blocks(self._coverage, self._now_ms):
            self._clicks_of.add_impressions(self._in_time(block))

    def read_table(self, log: TableLog) -> None:
        """Read all rows."""
        table = TableReader(log, self._refused)
        for block in table.blocks(self._coverage, self._now_ms):
            self._clicks += block.clicks
            self._clicks_of.add_pairs(self._in_time(block))
        click = log.layout.click
        self._click_column = click.column if click is not None else None
        self._click_words = table.words.in_words()

    def _in_time(self, block: SurveyedEvents) -> SurveyedEvents:
        """Count impressions; return those that are not too late for the joiner."""
        self._impressions += block.events
        self._names |= block.names
        self._readable += block.times.size
        too_late = self._order.add(block.times)
        if too_late.any() and not self._sort:
            first = block.show(int(np.argmax(too_late)))
            count = int(np.count_nonzero(too_late))
            self._refused.add(RefusedEvents(Reason.TOO_LATE, count, *first))
            kept = ~too_late
            block = block._replace(
                times=block.times[kept],
                hashes=None if block.hashes is None else block.hashes[kept],
                clicked=None if block.clicked is None else block.clicked[kept],
            )
        self._accepted += block.times.size
        if block.hashes is not None:
            self._repeated.add(block.hashes)
        return block

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
            ahead_ms=max(0, self._order.last_ms - self._now_ms),
            refused=self._refused.result(),
            fields=tuple(self._coverage),
            order=EventOrder() if self._sort else self._order.result(),
            joined=self._clicks_of.result(),
            repeated_ids=self._repeated.result(),
            seconds=round(seconds, 3),
            bytes_read=bytes_total,
            click_column=self._click_column,
            click_words=self._click_words,
            accepted=self._accepted,
            readable=self._readable,
        )
