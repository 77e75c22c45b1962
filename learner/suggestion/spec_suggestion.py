"""Writes a model spec for a log, with what the log holds as comments.

The spec is a start: logistic regression with ids, buckets of numbers, bags, rates of frequent
values, and the crosses that lowered the log loss of later impressions in the sample.
"""

import math
import re
from pathlib import Path

import numpy as np

from headrace.ingest.features.fields import LAST_NUMBER
from headrace.ingest.features.spec_text import SpecError
from headrace.ingest.logs.layout import LogLayout
from headrace.ingest.survey.findings import all_clicked
from headrace.learner.spec.architecture import CHOICE, LOGISTIC_REGRESSION
from headrace.learner.spec.model_spec import parse_spec
from headrace.learner.suggestion.column_profile import ColumnProfile, profile_of
from headrace.learner.suggestion.cross_search import FoundCross, find_crosses
from headrace.learner.suggestion.log_sample import LogSample, sample_log
from headrace.learner.suggestion.outcome_columns import without_outcomes
from headrace.learner.suggestion.request_clicks import clicks_of_requests
from headrace.learner.suggestion.robust_constants import robust_constants
from headrace.runtime.counted_nouns import counted

_ROWS = 300_000
_FIRST_STATISTIC = 100
_MOST_MORE = 10
"""Numbers of fields that are left for the hour and for crosses."""
_MOST_RATES = 4
_SHOWS_A_VALUE = 5
"""Impressions per value below which a rate says little."""
_LEAST_VALUES = 10
_HOURS_MS = 6 * 3_600_000
_LATE_SHARE = 0.995
"""Share of the clicks that the suggested window keeps."""
_UNSORTED = 0.01
"""Share of the rows that may come after a newer one before it is said."""
NO_CLICKS = (
    "No impression has a click. If a column tells clicks, name it in the layout: [click] column. "
    "Otherwise check the ids of the clicks."
)
_WINDOWS_S = (60, 300, 600, 1800, 3600, 7200, 21_600, 86_400, 604_800)


def suggest_spec(
    path: Path,
    layout: LogLayout | None = None,
    name: str = "",
    architecture: str = LOGISTIC_REGRESSION,
) -> str:
    """Return a commented spec for the log at `path`, from its first 300,000 impressions.

    name: of the model; by default from the name of the log. Raises NoEventsError, SpecError.
    """
    sample = sample_log(path, layout, _ROWS)
    if not sample.rows:
        raise SpecError(f"{path}: expected impressions, got none")
    if sample.rows > 1 and sample.labels.all():
        column = layout.click.column if layout and layout.click else None
        raise SpecError(f"{path}: {all_clicked(sample.rows, column, sample.words)}")
    profiles = without_outcomes(
        [profile_of(source, column, sample.labels) for source, column in sample.columns.items()],
        sample.columns,
        sample.labels,
    )
    profiles = _within_numbers(profiles)
    chosen = [each for each in profiles if each.transform]
    if not chosen:
        raise SpecError(
            f"{path}: expected columns that can be fields, got none: "
            + ("; ".join(f"{each.source}: {each.reason}" for each in profiles) or "no other column")
        )
    lines = _head(path, sample)
    crosses = find_crosses(chosen, sample.labels)
    rates = _counted(chosen, sample.rows)
    inputs = len(chosen) + len(crosses) + len(rates)
    clicks = int(sample.labels.sum())
    delay_s = float(sample.delays_ms.mean()) / 1000.0 if sample.delays_ms.size else 0.0
    delay_s = min(delay_s, float(_WINDOWS_S[-1]))
    constants = robust_constants(architecture, sample.rows, clicks, inputs, delay_s)
    lines += ["[model]", f'name = "{name or _name(path.name.partition(".")[0])}"']
    if architecture != LOGISTIC_REGRESSION:
        lines.append(f'architecture = "{architecture}"')
    lines += [*constants.model, *_loss(sample), ""]
    lines += _window(sample)
    lines += ["[fields]"]
    names = _names(chosen)
    number = 0
    for number, each in enumerate(chosen, 1):
        keys = f'number = {number}, transform = "{each.transform}"'
        if each.transform == "bag":
            keys += ', pooling = "sqrt"'
        if names[each.source] != each.source:
            keys += f', source = "{_escaped(each.source)}"'
        lines.append(f"{names[each.source]} = {{ {keys} }}  # {each.reason}")
    if sample.timed and _span_ms(sample) > _HOURS_MS and "hour" not in names.values():
        number += 1
        key = f'hour = {{ number = {number}, transform = "hour" }}'
        lines.append(f"{key}  # of timestamp_ms, in UTC; utc_offset_h shifts it")
    lines += _crosses(crosses, names, number + 1)
    lines += [
        f"# not used: {each.source}: {each.reason}" for each in profiles if not each.transform
    ]
    lines += _statistics(rates, names, sample.rows)
    lines += ["", *constants.optimizer, "", *constants.calibration]
    text = "\n".join(lines) + "\n"
    parse_spec(text, f"spec suggested for {path}")
    return text


def _within_numbers(profiles: list[ColumnProfile]) -> list[ColumnProfile]:
    """Return the profiles, without a transform for those beyond the numbers that fields have."""
    useful = [each for each in profiles if each.transform]
    beyond = {each.source for each in useful[LAST_NUMBER - _MOST_MORE :]}
    reason = f"one of more than {LAST_NUMBER - _MOST_MORE} useful columns"
    return [
        ColumnProfile(each.source, "", f"{reason}: {each.reason}", each.distinct)
        if each.source in beyond
        else each
        for each in profiles
    ]


def _head(path: Path, sample: LogSample) -> list[str]:
    clicks = int(sample.labels.sum())
    which = "all" if sample.whole else "the first"
    lines = [
        (
            f"# Suggested for {path.name} from {which} {counted(sample.rows, 'impression')}, "
            f"{clicks:,} of them clicked ({100 * clicks / sample.rows:.2f} %)."
        ),
        "# A first model: `headrace check` compares it with a log, `headrace run` measures it.",
        "",
    ]
    behind = int(np.count_nonzero(sample.times < np.maximum.accumulate(sample.times)))
    if behind > _UNSORTED * sample.rows:
        lines.insert(
            2,
            f"# {counted(behind, 'row comes', 'rows come')} after a newer one: give `check` and "
            "`run` the flag --sort.",
        )
    if not clicks:
        lines.insert(1, f"# {NO_CLICKS}")
    return lines


def _window(sample: LogSample) -> list[str]:
    if not sample.delays_ms.size:
        return []
    needed_s = float(np.quantile(sample.delays_ms, _LATE_SHARE)) / 1000
    window_s = next((each for each in _WINDOWS_S if each >= needed_s), _WINDOWS_S[-1])
    return [
        "[label]",
        f"window_s = {window_s}  # {100 * _LATE_SHARE:g} % of clicks come within {needed_s:,.0f} s",
        "",
    ]


def _loss(sample: LogSample) -> list[str]:
    found = clicks_of_requests(sample.requests, sample.labels)
    if not found.choose:
        return []
    return [
        (
            f"# {counted(found.requests, 'request has', 'requests have')} {found.candidates:.1f} "
            f"candidates on average, and {found.several:,} of them several clicks."
        ),
        f"# If each candidate were clicked by itself, {found.expected:,.0f} would have several.",
        f'loss = "{CHOICE}"  # users choose one candidate or none',
    ]


def _crosses(found: list[FoundCross], names: dict[str, str], number: int) -> list[str]:
    if not found:
        return ["# no cross: no pair of these fields lowered the log loss beyond chance"]
    return [
        f"{_free(f'{names[each.first]}_x_{names[each.second]}', names)} = {{ number = {place}, "
        f'transform = "cross", of = ["{names[each.first]}", "{names[each.second]}"] }}'
        f"  # lowers the log loss by {100 * each.gain:.2f} %"
        for place, each in enumerate(found, number)
    ]


def _counted(chosen: list[ColumnProfile], rows: int) -> list[ColumnProfile]:
    """Return the columns of which a value has impressions enough for a rate."""
    counted = [
        each
        for each in chosen
        if each.transform == "id"
        and each.distinct >= _LEAST_VALUES
        and rows >= _SHOWS_A_VALUE * each.distinct
    ]
    return sorted(counted, key=lambda each: -each.distinct)[:_MOST_RATES]


def _statistics(counted: list[ColumnProfile], names: dict[str, str], rows: int) -> list[str]:
    if not counted:
        return []
    lines = ["", "[statistics]"]
    for place, each in enumerate(counted):
        lines.append(
            f"{names[each.source]}_rate = {{ number = {_FIRST_STATISTIC + place}, "
            f'statistic = "rate", of = "{names[each.source]}" }}'
            f"  # {rows / each.distinct:,.0f} impressions per value"
        )
    return lines


def _names(chosen: list[ColumnProfile]) -> dict[str, str]:
    """Return column -> field name of a-z, 0-9 and _, each name once."""
    names: dict[str, str] = {}
    for each in chosen:
        names[each.source] = _free(_name(each.source), names)
    return names


def _free(name: str, names: dict[str, str]) -> str:
    taken, number, free = set(names.values()), 2, name
    while free in taken:
        free, number = f"{name}_{number}", number + 1
    return free


def _name(text: str) -> str:
    return re.sub(r"[^a-z0-9_]+", "_", text.lower()).strip("_") or "model"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _span_ms(sample: LogSample) -> float:
    known = sample.times[sample.times > 0]
    return float(known.max() - known.min()) if known.size else -math.inf
