"""Writes a model spec for a log, with what the log holds as comments.

Rules choose ids, buckets of numbers and bags for the columns. A search adds the statistics and
crosses that lower the log loss of later impressions in the sample (`spec_search`). Without a
search, the rates of frequent values are added.
"""

import math
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headrace.ingest.features.fields import LAST_NUMBER
from headrace.ingest.features.spec_text import SpecError
from headrace.ingest.logs.layout import LogLayout
from headrace.ingest.survey.findings import all_clicked
from headrace.learner.spec.architecture import DIN, LOGISTIC_REGRESSION, SEQUENCE
from headrace.learner.spec.model_spec import parse_spec
from headrace.learner.suggestion.column_profile import ColumnProfile, profile_of
from headrace.learner.suggestion.delay_mixture import delay_mixture
from headrace.learner.suggestion.log_sample import LogSample, sample_log
from headrace.learner.suggestion.outcome_columns import without_outcomes
from headrace.learner.suggestion.request_clicks import RequestClicks, clicks_of_requests
from headrace.learner.suggestion.robust_constants import UNSCALED, is_network
from headrace.learner.suggestion.sample_stream import SampleStream
from headrace.learner.suggestion.search_candidates import (
    WITHOUT_CALIBRATION,
    Candidate,
    adding,
    candidates_of,
    combinations_of,
    cross_groups,
    rate_of,
    removals,
    statistic_crosses,
)
from headrace.learner.suggestion.spec_draft import DraftInput, SpecDraft
from headrace.learner.suggestion.spec_search import SearchedSpec, SpecSearch, Tell
from headrace.learner.suggestion.user_history import recent_clicks, with_history
from headrace.runtime.counted_nouns import counted

_ROWS = 300_000
_MOST_MORE = 200
"""Numbers that are left for the hour, crosses and statistics."""
_MOST_RATES = 4
_SHOWS_A_VALUE = 5
"""Impressions per value below which a rate says little."""
_LEAST_VALUES = 10
_HOURS_MS = 6 * 3_600_000
_WAIT_S = 2
"""Above the time that a guessed layout puts between an impression and its click."""
_LATE_SHARE = 0.995
"""Share of the clicks that the suggested window keeps."""
_UNSORTED = 0.01
"""Share of the rows that may come after a newer one before it is said."""
_INPUTS_SHARE = 0.4
"""Share of the time for the inputs, if an architecture is asked for that has constants to find."""
_LEAST_CLICKS = 500
"""Fewest clicks for a search, and impressions without a click."""
_ZONE_S = 1800.0
"""Least delay of all clicks that looks like the difference of two zones."""
_WINDOWS_S = (60, 300, 600, 1800, 3600, 7200, 21_600, 86_400, 604_800)


class Suggestion(NamedTuple):
    """A spec, and how it was found."""

    text: str
    searched: SearchedSpec | None
    """None: by rules alone."""
    warnings: tuple[str, ...]
    """Comments of the text that a user should not miss."""


def suggest_spec(
    path: Path,
    layout: LogLayout | None = None,
    name: str = "",
    architecture: str = LOGISTIC_REGRESSION,
    seconds: float = 0.0,
    tell: Tell = lambda _share, _text: None,
) -> Suggestion:
    """Return a commented spec for the log at `path`, from its first 300,000 impressions.

    name: of the model; by default from the name of the log. seconds: of the search; 0: rules alone,
    as for a log with few clicks. Raises NoEventsError, SpecError.
    """
    sample = sample_log(path, layout, _ROWS)
    if not sample.rows:
        raise SpecError(f"{path}: expected impressions, got none")
    clicks = int(sample.labels.sum())
    if sample.rows > 1 and clicks == sample.rows:
        column = layout.click.column if layout and layout.click else None
        raise SpecError(f"{path}: {all_clicked(sample.rows, column, sample.words)}")
    warnings = tuple(_warnings(sample))
    draft, fields = _drafted(path, sample, name, warnings)
    draft, searched = draft.adding((), _rates(fields, sample.rows)), None
    asked = None
    if architecture != LOGISTIC_REGRESSION:
        change = partial(_with_architecture, architecture, fields=fields, sample=sample)
        asked = Candidate(f"architecture = {architecture}", change)
        asked.change(draft)  # an architecture that the log cannot feed is refused before a search
    if seconds and min(clicks, sample.rows - clicks) >= _LEAST_CLICKS:
        searched = _searched(draft, fields, sample, seconds, tell, asked)
        draft = searched.draft
    elif asked is not None:
        draft = asked.change(draft)
    text = draft.text()
    parse_spec(text, f"spec suggested for {path}")
    return Suggestion(text, searched, warnings)


def _drafted(
    path: Path, sample: LogSample, name: str, warnings: tuple[str, ...]
) -> tuple[SpecDraft, dict[str, ColumnProfile]]:
    """Return a spec of the columns, and the column of each field. Raises SpecError."""
    profiles = without_outcomes(
        [
            profile_of(source, column, sample.labels, sample.requests)
            for source, column in sample.columns.items()
        ],
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
    names = _names(chosen)
    fields = [_field(names[each.source], each) for each in chosen]
    if sample.timed and _span_ms(sample) > _HOURS_MS and "hour" not in names.values():
        said = "of timestamp_ms, in UTC; utc_offset_h shifts it"
        fields.append(DraftInput("hour", 'transform = "hour"', said))
    found = clicks_of_requests(sample.requests, sample.labels)
    draft = SpecDraft(
        name or _name(path.name.partition(".")[0]),
        tuple(_head(path, sample, warnings)),
        tuple(_window(sample)),
        sample.rows,
        int(sample.labels.sum()),
        delay_mixture(np.minimum(sample.delays_ms / 1000.0, float(_WINDOWS_S[-1]))),
        tuple(fields),
        tuple(
            f"# not used: {each.source}: {each.reason}" for each in profiles if not each.transform
        ),
        candidates=max(found.candidates, 1.0),
        choice=found.choose,
        loss_reason=_loss_reason(found) if found.choose else (),
    )
    return draft, {names[each.source]: each for each in chosen}


def _field(name: str, profile: ColumnProfile) -> DraftInput:
    keys = f'transform = "{profile.transform}"'
    if profile.transform == "bag":
        keys += ', pooling = "sqrt"'
    if name != profile.source:
        keys += f', source = "{_escaped(profile.source)}"'
    return DraftInput(name, keys, profile.reason)


def _with_architecture(
    architecture: str, draft: SpecDraft, fields: dict[str, ColumnProfile], sample: LogSample
) -> SpecDraft:
    """Return the draft with an architecture, whose constants are others. Raises SpecError."""
    draft = replace(draft, architecture=architecture, factors=UNSCALED)
    return with_history(draft, fields, sample) if architecture in (DIN, SEQUENCE) else draft


def _searched(
    draft: SpecDraft,
    fields: dict[str, ColumnProfile],
    sample: LogSample,
    seconds: float,
    tell: Tell,
    asked: Candidate | None,
) -> SearchedSpec:
    """Return what a search finds, with its gains as comments.

    asked: the change to the architecture that the user asked for; None: logistic regression.
    """
    stream = SampleStream(sample, parse_spec(draft.text(), "suggested spec"))
    search = SpecSearch(draft, stream, seconds, tell)
    days = max(_span_ms(sample), 0.0) / 86_400_000 if sample.timed else 0.0
    known = sample.requests[sample.requests >= 0]
    requests = bool(known.size) and np.unique(known).size < known.size
    share = 1.0 if asked is None else _INPUTS_SHARE
    search.drop(removals(draft, draft))
    pairs = combinations_of(fields)
    first = [*candidates_of(draft, fields, pairs, requests=requests, days=days)]
    kept = True
    while kept:
        first = [each for each in first if each.name not in search.draft.names]
        more = statistic_crosses(search.draft, fields)
        kept = search.try_all([*first, *more], 0.85 * share)
    search.try_all([*cross_groups(search.draft, pairs)], 0.9 * share)
    search.drop(removals(search.draft, draft))
    search.judge_each([WITHOUT_CALIBRATION])
    if asked is None:
        search.tune("alpha")
        search.tune("l2")
    else:
        search.take(asked)
        _tune_vectors(search, recent_clicks(fields, sample))
    found = search.result()
    gains = {
        each.name: f"{_effect(each.later)} the log loss by {100 * abs(each.later):.2f} %"
        for each in found.trials
        if each.later is not None
    }
    said = (
        "# A search chose by the first 70 % of them. The result of all its changes",
        f"# {_effect(found.gain)} the log loss of the last 30 % by {100 * abs(found.gain):.1f} %.",
    )
    commented = [
        tuple(each._replace(comment=gains.get(each.name, each.comment)) for each in some)
        for some in (found.draft.fields, found.draft.statistics)
    ]
    draft = replace(
        found.draft,
        head=(draft.head[0], *said, *draft.head[1:]),
        fields=commented[0],
        statistics=commented[1],
    )
    return replace(found, draft=draft)


def _effect(gain: float) -> str:
    return "raises" if gain < 0.0 else "lowers"


def _tune_vectors(search: SpecSearch, history: tuple[DraftInput, str] | None) -> None:
    """Search the constants of a model with vectors, those that matter most first."""
    if is_network(search.draft.architecture):
        search.tune("layers_alpha", factors=(2.0, 0.5))
        search.tune("mini_batch", factors=(0.5,))
    search.tune("vectors_alpha", factors=(2.0, 0.5))
    if history is not None and not search.draft.history:
        search.judge_each([adding((history[0],))])
    search.tune("alpha")
    search.tune("vectors_l2")


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


def _head(path: Path, sample: LogSample, warnings: tuple[str, ...]) -> list[str]:
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
    lines[1:1] = [f"# warning: {each}" for each in warnings]
    return lines


def _warnings(sample: LogSample) -> list[str]:
    """Return what is probably wrong with the clicks of a log."""
    found = []
    if sample.refused:
        found.append(
            f"{counted(sample.refused, 'row is', 'rows are')} refused, because their click "
            "cannot be read or comes before its impression: see `headrace check`, and compare "
            "the units and zones of both times."
        )
    elif not sample.labels.any():
        found.append(
            "No impression has a click. If a column tells clicks, name it in the layout: [click] "
            "column. Otherwise check the ids of the clicks."
        )
    soonest_s = float(sample.delays_ms.min()) / 1000 if sample.delays_ms.size else 0.0
    if soonest_s >= _ZONE_S:
        found.append(
            f"No click comes sooner than {soonest_s / 3600:.1f} h after its impression: compare "
            "the zones of both times."
        )
    return found


def _window(sample: LogSample) -> list[str]:
    if not sample.delays_ms.size:
        after_ms = int((sample.click_ms - sample.times)[sample.labels].max(initial=0))
        if not 0 < after_ms < 1000 * _WAIT_S:
            return []
        said = "the log has no times of clicks: a row and its click are one example"
        return ["[label]", f"wait_s = {_WAIT_S}  # {said}", ""]
    needed_s = float(np.quantile(sample.delays_ms, _LATE_SHARE)) / 1000
    window_s = next((each for each in _WINDOWS_S if each >= needed_s), _WINDOWS_S[-1])
    return [
        "[label]",
        f"window_s = {window_s}  # {100 * _LATE_SHARE:g} % of clicks come within {needed_s:,.0f} s",
        "",
    ]


def _loss_reason(found: RequestClicks) -> tuple[str, ...]:
    return (
        (
            f"# {counted(found.requests, 'request has', 'requests have')} {found.candidates:.1f} "
            f"candidates on average, and {found.several:,} of them several clicks."
        ),
        f"# If each candidate were clicked by itself, {found.expected:,.0f} would have several.",
    )


def _rates(fields: dict[str, ColumnProfile], rows: int) -> tuple[DraftInput, ...]:
    """Return the click rates of fields whose values have impressions enough."""
    counted = [
        name
        for name, each in fields.items()
        if each.transform == "id"
        and each.distinct >= _LEAST_VALUES
        and rows >= _SHOWS_A_VALUE * each.distinct
    ]
    return tuple(
        rate_of(name)._replace(comment=f"{rows / fields[name].distinct:,.0f} impressions per value")
        for name in sorted(counted, key=lambda name: -fields[name].distinct)[:_MOST_RATES]
    )


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
