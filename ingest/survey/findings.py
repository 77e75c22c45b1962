"""Findings about a log, as figures for a report and as text for a terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.ingest.events.contract import Reason
from headrace.ingest.features.cells.time_forms import guess_time_format
from headrace.ingest.features.fields import Transform
from headrace.ingest.logs.decimal_commas import are_grouped, has_decimal_comma
from headrace.runtime.counted_nouns import counted, counted_of

Bools = npt.NDArray[np.bool_]
Longs = npt.NDArray[np.int64]

_UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
_OF_TIME = (Reason.NO_TIME, Reason.BEFORE_2000, Reason.AHEAD)
_LONGEST_SHOWN = 160
_AHEAD_MS = 600_000
"""A newest time further ahead is no difference of clocks."""


@dataclass(frozen=True, slots=True)
class RefusedEvents:
    """Events that the joiner refuses for one reason."""

    reason: Reason
    count: int
    place: str = ""
    """File, and line or row, of the first."""
    example: str = ""
    """The first, shortened."""
    time: float | None = None
    """The time of the first, as given."""
    advice: str = ""
    """The cause in the first, and what to do, if the reason does not say it."""
    cause: str = ""
    """The fault of the first in the terms of its file, where `reason` is in the terms of events.
    The dead letter of the line has `reason`."""

    @property
    def details(self) -> str:
        """The reason, the first event, and what to do."""
        text = f"{self.cause or self.reason}\n  first: {self.place}: {self.example}"
        if self.advice:
            text += f"\n  {self.advice}"
        if self.reason in _OF_TIME and self.time is not None:
            unit = guess_time_format(pa.array([self.time]))
            if unit is not None:
                text += (
                    f"\n  {self.time:.0f} looks like {_UNITS[unit]}. Write milliseconds, or in a "
                    f'layout timestamp_format = "{unit}".'
                )
        return text


@dataclass(slots=True)
class FieldCoverage:
    """The values that events have for one declared field."""

    name: str
    source: str
    transform: str
    present: int = 0
    """Impressions with a value that is not null."""
    unusable: int = 0
    """Values that the transform cannot use and takes as absent: a word in place of a number, an
    array in place of a single value."""
    single: int = 0
    """Of a bag: values that are no array. Each counts as a bag of one item."""
    example: str = ""
    """An unusable value, or the single value of a bag."""
    hint: str = ""
    """The name in the events that may be meant."""
    column: str = ""
    """Of a table: the column of the field."""
    untyped: int = 0
    """Of a CSV: texts such as 1.0, 76.50 and True, where requests send 1, 76.5 and true."""
    grouped: int = 0
    """Of a CSV: texts such as 1,234.50, where requests send 1234.5."""

    def count(self, values: FieldValues) -> None:
        """Add the values of some impressions."""
        self.present += int(np.count_nonzero(values.present))
        nothing, single = np.zeros(0, np.bool_), values.present & ~values.listed
        wrong = unlisted = untyped = nothing
        if self.transform == Transform.BAG:
            unlisted = single
        elif self.transform in (Transform.NUMBER, Transform.LOG_BUCKET):
            wrong = values.present & ~values.numeric
        else:
            wrong = values.present & values.listed
        if self.transform == Transform.ID and values.untyped is not None:
            untyped = values.present & values.untyped
        self.single += int(np.count_nonzero(unlisted))
        self.unusable += int(np.count_nonzero(wrong))
        self.untyped += int(np.count_nonzero(untyped))
        for chosen in (unlisted, wrong, untyped):
            if not self.example and chosen.any():
                self.example = shortened(values.text(int(np.argmax(chosen))))
        if values.grouped is not None and (grouped := values.present & values.grouped).any():
            if not self.grouped:
                self.example = shortened(values.text(int(np.argmax(grouped))))
            self.grouped += int(np.count_nonzero(grouped))

    def warnings(self) -> list[str]:
        """Return what is wrong with the values, and what to do."""
        name = f"field {self.name}"
        if not self.present:
            meant = f' Did you mean "{self.hint}"?' if self.hint else ""
            return [
                (
                    f"{name}: no impression has {self.source!r}, so it is always absent.{meant} "
                    "Set its source in the spec, or rename it in the events"
                )
            ]
        found = []
        if self.unusable:
            number = self.transform in ("number", "log_bucket")
            wanted = "a number" if number else "a single value"
            if self.column not in ("", self.name):
                name += f" (column {self.column!r})"
            words = f"value is not {wanted} and counts", f"values are not {wanted} and count"
            found.append(
                f"{name}: {counted(self.unusable, *words)} as absent, such as {self.example!r}"
                + (f". {number_advice(self.example, self.column)}" if number else "")
            )
        if self.grouped:
            words = "value is the text of a number", "values are texts of numbers"
            found.append(
                f"{name}: {counted(self.grouped, *words)}, such as {self.example!r}. Requests send "
                f"1234.5 for 1,234.50. {number_advice(self.example, self.column)}"
            )
        elif self.untyped == self.present:
            found.append(
                f"{name}: all values are texts such as {self.example!r}, where requests send 1 for "
                "1.0, 2.5 for 2.50, and true for True. In the layout, write numbers = "
                f'["{self.column}"] in [file]'
            )
        if self.transform == "bag" and self.single == self.present:
            found.append(
                f"{name}: expected arrays, got only single values, such as {self.example!r}. Send "
                "an array, or in a layout "
                f'{self.name} = {{ column = "{self.source}", separator = "|" }}'
            )
        return found


class FieldValues(NamedTuple):
    """The values of n impressions for one field."""

    present: Bools
    """Whether an impression that is not refused has one; (n,), as the others."""
    listed: Bools
    """Whether it is an array."""
    numeric: Bools
    """Whether it is a number or the text of one."""
    text: Callable[[int], str]
    """Returns one of the values."""
    untyped: Bools | None = None
    """Of a CSV: whether it is a text such as 1.0 or True."""
    grouped: Bools | None = None
    """Of a CSV: whether it is a text such as 1,234.50."""


class SurveyedEvents(NamedTuple):
    """A block of the log; shapes are (n,), for n impressions that are not refused."""

    events: int
    """With the refused ones."""
    names: set[str]
    """Of the fields."""
    times: Longs
    hashes: npt.NDArray[np.uint64] | None
    """Of the ids; None if row numbers are the ids."""
    show: Callable[[int], tuple[str, str]]
    """Returns the place and the text of one of the n."""
    clicks: int = 0
    """In the rows of a table, with those of refused impressions."""
    clicked: Longs | None = None
    """Times of these clicks, 0 without one; (n,)."""


@dataclass(frozen=True, slots=True)
class EventOrder:
    """Impressions that come after a newer one."""

    disordered: int = 0
    furthest_ms: int = 0
    """The longest time by which one comes too late."""


@dataclass(frozen=True, slots=True)
class ClickCounts:
    """Clicks by what becomes of them."""

    matched: int = 0
    late: int = 0
    """More than the label window after their impression."""
    unmatched: int = 0
    """Without an impression of their id in the log."""
    repeated: int = 0
    """Further clicks of the same impression."""
    early: int = 0
    """More than the label window before their impression."""


@dataclass(frozen=True, slots=True)
class LogSurvey:
    """Everything found in one log."""

    path: str
    impressions: int
    """In the log, including refused ones."""
    clicks: int
    window_ms: int
    first_ms: int
    """0 without a valid time."""
    last_ms: int
    ahead_ms: int
    """From now to the newest time; 0 if it is in the past."""
    refused: tuple[RefusedEvents, ...]
    """The most frequent reason first."""
    fields: tuple[FieldCoverage, ...]
    order: EventOrder
    joined: ClickCounts
    repeated_ids: int = 0
    """Estimate of impressions whose id an earlier one had, within a percent."""
    seconds: float = 0.0
    bytes_read: int = 0
    click_column: str | None = None
    """Of a table whose layout names one."""
    click_words: str = ""
    """Values of that column, with their counts."""
    accepted: int = field(default=0)
    """Impressions that are not refused."""
    readable: int = field(default=0)
    """Impressions that are not refused or only come too late: those that coverage counts."""

    @property
    def refused_count(self) -> int:
        """Events that the joiner refuses."""
        return sum(each.count for each in self.refused)

    @property
    def unusable(self) -> bool:
        """Whether a model could not learn from the log.

        It is empty, more than half of its events or of its impressions are refused, every
        impression has a click, no impression has a value for any field, or a field is absent
        although the events have one of a similar name.
        """
        refused = (
            2 * self.refused_count > self.impressions + self.clicks
            or 2 * self.accepted < self.impressions
        )
        return not self.impressions or refused or self.all_clicked or self.foreign or self.misnamed

    @property
    def refusal(self) -> str:
        """The reason why `headrace run` does not start with an unusable log, and what to do."""
        return (
            "refused: expected a log of which at most half is refused, with the fields of the spec "
            "and impressions without a click. Correct the log, its layout or the spec as the "
            "warnings say"
        )

    @property
    def foreign(self) -> bool:
        """Whether no impression has a value for any field of the spec."""
        return self.readable > 0 and bool(self.fields) and not any(f.present for f in self.fields)

    @property
    def misnamed(self) -> bool:
        """Whether no impression has a field of the spec, but some have one of a similar name."""
        return self.readable > 0 and any(f.hint and not f.present for f in self.fields)

    @property
    def all_clicked(self) -> bool:
        """Whether every impression that is not refused has a click."""
        return self.accepted > 1 and self.joined.matched >= self.accepted

    def warnings(self) -> list[str]:
        """Return what is wrong with the log, and what to do; empty for a log without faults."""
        found = [] if self.impressions else [f"{self.path}: expected impressions, got none"]
        found += self._order_warnings()  # often the cause of the refusals below
        events = self.impressions + self.clicks
        for each in self.refused:
            share = 100 * each.count / events
            found.append(
                f"{each.count:,} of {counted(events, 'event')} ({share:.1f} %) "
                f"{'is' if each.count == 1 else 'are'} refused: {each.details}"
            )
        if self.ahead_ms > _AHEAD_MS:
            found.append(
                f"the newest time is {duration(self.ahead_ms)} in the future. If times are local, "
                "write their time_zone in the layout, [event]"
            )
        found += self._click_warnings()
        if self.foreign:
            found.append(
                "no impression has a value for any field of the spec: expected the spec of this log"
            )
        for coverage in self.fields:
            found += coverage.warnings() if self.readable else []
        if self.joined.unmatched:
            # a click of a refused impression is unmatched, too
            first = "correct the refused events first, then " if self.refused else ""
            found.append(
                f"{counted_of(self.joined.unmatched, self.clicks, 'clicks has', 'clicks have')} no "
                f"impression of the same impression_id: {first}compare the ids of both files"
            )
        widen = "To learn them, raise [label] window_s in the spec"
        if self.joined.late > self.joined.matched:
            widen = f"Compare the zones and units of both times. {widen}"
        for count, side, advice in (
            (self.joined.late, "after", widen),
            (self.joined.early, "before", "Correct the times, or remove these clicks"),
        ):
            if count:
                found.append(
                    f"{counted_of(count, self.clicks, 'clicks comes', 'clicks come')} more than "
                    f"{duration(self.window_ms)} {side} the impression: not learned. {advice}"
                )
        if self.repeated_ids:
            found.append(
                f"about {counted(self.repeated_ids, 'impression repeats', 'impressions repeat')} "
                "an impression_id. Duplicates within two windows are dropped: ids must be unique"
            )
        return found

    def in_words(self) -> str:
        """Return the survey as text."""
        span = "no valid times"
        if self.first_ms:
            span = f"{_moment(self.first_ms)} to {_moment(self.last_ms)} UTC"
        joined, shown = self.joined, counted(self.impressions, "impression")
        lines = [
            f"{self.path}: {shown}, {counted(self.clicks, 'click')}, {span}",
            (
                f"clicks: {joined.matched:,} matched, {joined.late:,} late, "
                f"{f'{joined.early:,} early, ' if joined.early else ''}{joined.unmatched:,} "
                f"without an impression, {joined.repeated:,} repeated"
            ),
        ]
        width = max((len(each.name) for each in self.fields), default=0)
        if self.fields:
            lines.append("share of impressions with a usable value, by field:")
        lines += [
            f"  {each.name:<{width}}  {_share(each, self.readable):>7}" for each in self.fields
        ]
        warnings = self.warnings()
        lines += [f"warning: {each}" for each in warnings] or ["nothing to warn about"]
        rate = self.bytes_read / 1e6 / max(self.seconds, 1e-3)
        lines.append(
            f"read {self.bytes_read / 1e6:,.1f} MB in {self.seconds:.1f} s ({rate:,.1f} MB/s)"
        )
        return "\n".join(lines)

    def _click_warnings(self) -> list[str]:
        """A model learns nothing from labels that are all the same."""
        if self.accepted and not self.clicks:
            text = (
                f"expected clicks, got none in {counted(self.impressions, 'impression')}: a model "
                "learns only that nothing is clicked. Name the column of clicks in the layout, "
                "[click] column or timestamp, or write clicks.ndjson"
            )
            return [text]
        if self.all_clicked:
            return [all_clicked(self.accepted, self.click_column, self.click_words)]
        return []

    def _order_warnings(self) -> list[str]:
        if not self.order.disordered:
            return []
        words = "impressions comes", "impressions come"
        return [
            (
                f"{counted_of(self.order.disordered, self.impressions, *words)} after a newer one, "
                f"by up to {duration(self.order.furthest_ms)}; those by more than "
                f"{duration(self.window_ms)} are refused: sort the log by time, or use --sort"
            )
        ]


def all_clicked(rows: int, column: str | None, words: str) -> str:
    """Return the message about a log in which every impression has a click.

    column: that of the clicks, if the layout names one; words: its texts with their counts.
    """
    found = f"expected impressions with and without a click, got a click for all {rows:,}"
    if column is None:
        return f"{found}: a model learns only that everything is clicked. Compare the click times"
    return (
        f"{found}: the column {column!r} has the values {words}. Name the words that mean a click "
        'in the layout: [click] values = ["…"]'
    )


def shortened(text: str) -> str:
    """Return a text of at most 160 characters."""
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def number_advice(example: str, column: str = "") -> str:
    """Return what to do about a text where a number is expected. column: of a table."""
    if not has_decimal_comma(example):
        if are_grouped(pa.array([example]))[0].as_py():
            return "Remove the commas between thousands from the file"
        return "Correct the values, or give the field another transform"
    if not column:
        return "Write a decimal point in place of the comma"
    return f'For decimal commas, write decimal_commas = ["{column}"] in the layout, [file]'


def _share(coverage: FieldCoverage, impressions: int) -> str:
    usable = coverage.present - coverage.unusable
    return f"{100 * usable / impressions:.1f} %" if impressions else "-"


def _moment(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def duration(milliseconds: int) -> str:
    """Return a time as text, in the largest unit of which it has two."""
    for unit, size in (("days", 86_400_000), ("hours", 3_600_000), ("minutes", 60_000)):
        if milliseconds >= 2 * size:
            return f"{milliseconds / size:.0f} {unit}"
    return f"{milliseconds / 1000:g} seconds"
