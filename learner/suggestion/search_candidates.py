"""Proposes changes of a drafted spec (loss, statistics, crosses); `spec_search` tries them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.learner.suggestion.column_profile import ColumnProfile
from headrace.learner.suggestion.spec_draft import DraftInput, SpecDraft

Codes = npt.NDArray[np.int32]
Pair = tuple[str, str]
"""Names of two fields."""

_LEAST_VALUES = 10
"""Fewest values of a field whose statistics are tried."""
_MOST_IDS = 6
"""Most fields whose statistics are tried: those with the most values."""
_MOST_PAIRED = 5
_MOST_CROSSED = 12
"""Most fields whose crosses are tried: those with the fewest values."""
_ROWS_A_COMBINATION = 5.0
_LEAST_MORE_COMBINATIONS = 1.05
"""Combinations for each value of the larger column. With fewer, nearly every value of one column
has one value of the other, so the cross is that column again."""
_PRIOR_SHOWS = 10.0
_PERIODS_S = {"hour": 3600, "day": 86_400}
_FEW = 64
"""Values of a field with which statistics are crossed."""


class Candidate(NamedTuple):
    """A change of a spec."""

    name: str
    change: Callable[[SpecDraft], SpecDraft]


WITHOUT_CALIBRATION = Candidate(
    "without calibration", lambda draft: replace(draft, calibrated=False)
)
"""A mixture is too late if outcomes come in clusters, such as delays on days of snow."""


def candidates_of(
    draft: SpecDraft,
    fields: dict[str, ColumnProfile],
    pairs: Mapping[Pair, int],
    *,
    requests: bool,
    days: float,
) -> Iterator[Candidate]:
    """Yield the changes that need no statistic in the spec.

    fields: by name. pairs: of `combinations_of`. requests: whether several impressions share one.
    days: of the log, 0 if it has no times.
    """
    if requests:
        said = "logistic" if draft.choice else "choice"
        yield Candidate(
            f"loss = {said}",
            lambda draft: replace(draft, choice=not draft.choice, loss_reason=()),
        )
    many = _many_valued(fields)
    for name in many:
        fine = _statistic("rate", name, draft)
        for each in (rate_of(name), fine._replace(name=f"{name}_fine_rate")):
            yield adding((), (each,))
        for kind in ("show", "age") if days else ("show",):
            yield adding((), (_statistic(kind, name, draft),))
    yield from _periodic(draft, many[:_MOST_PAIRED], days)
    for name, profile in fields.items():
        if profile.transform == "bag":
            yield Candidate(f"mean of {name}", partial(_pooled, name=name))
    for (one, other), count in pairs.items():
        cross = _cross(one, other)
        if count and {one, other} & {*many[:_MOST_PAIRED]}:
            for kind in ("show", "rate") if {one, other} <= {*many} else ("rate",):
                yield adding((cross,), (_statistic(kind, cross.name, draft),))
        if _is_frequent(count, draft):
            yield adding((cross,))


def cross_groups(draft: SpecDraft, pairs: Mapping[Pair, int]) -> Iterator[Candidate]:
    """Yield all crosses of each field at once, since one alone may help too little to be seen."""
    crosses: dict[str, list[DraftInput]] = {}
    for pair, count in pairs.items():
        if _is_frequent(count, draft):
            for name in pair:
                crosses.setdefault(name, []).append(_cross(*pair))
    for name, some in crosses.items():
        if len(some) > 1:
            more = partial(SpecDraft.adding, fields=tuple(some), statistics=())
            yield Candidate(f"crosses of {name}", more)


def combinations_of(fields: Mapping[str, ColumnProfile]) -> dict[Pair, int]:
    """Return the pairs of fields to cross, with how many combinations they have (0: none new)."""
    codes = {name: each.codes for name, each in fields.items() if each.codes is not None}
    few = sorted(codes, key=lambda name: fields[name].distinct)[:_MOST_CROSSED]
    read = {*_many_valued(fields)[:_MOST_PAIRED], *few}
    values = {name: _different(codes[name]) for name in read}
    return {
        (one, other): _combinations(codes[one], codes[other], max(values[one], values[other]))
        for one, other in combinations([name for name in codes if name in read], 2)
    }


def _many_valued(fields: Mapping[str, ColumnProfile]) -> list[str]:
    """Return the fields of ids whose statistics are tried."""
    names = [
        name
        for name, each in fields.items()
        if each.codes is not None and each.distinct >= _LEAST_VALUES
    ]
    return sorted(names, key=lambda name: -fields[name].distinct)[:_MOST_IDS]


def _is_frequent(count: int, draft: SpecDraft) -> bool:
    """Whether so many combinations have enough impressions each for weights of their own."""
    return 0 < count * _ROWS_A_COMBINATION <= draft.shows


def _periodic(draft: SpecDraft, names: Sequence[str], days: float) -> Iterator[Candidate]:
    """Yield crosses with the hour of the day, and rates of the present hour and day."""
    for name in names if "hour" in draft.names else ():
        yield adding((_cross(name, "hour"),))
    for word, period_s in _PERIODS_S.items():
        period = DraftInput(f"this_{word}", f'transform = "period", period_s = {period_s}')
        for name in names if days * 86_400 > 3 * period_s else ():
            cross = _cross(name, period.name)
            yield adding((period, cross), (_statistic("rate", cross.name, draft),))


def rate_of(name: str) -> DraftInput:
    """Return the rate of a field, in coarse levels that few clicks suffice for."""
    return DraftInput(f"{name}_rate", f'statistic = "rate", of = "{name}"')


def removals(draft: SpecDraft, rules: SpecDraft) -> list[Candidate]:
    """Return the changes that remove a statistic of the rules, one that no cross needs."""
    return [
        Candidate(f"without {each.name}", partial(SpecDraft.without, name=each.name))
        for each in draft.statistics
        if each in rules.statistics
        and not any(f'"{each.name}"' in other.keys for other in draft.statistics)
    ]


def statistic_crosses(draft: SpecDraft, fields: dict[str, ColumnProfile]) -> Iterator[Candidate]:
    """Yield the crosses of the draft's statistics with each other and with small fields."""
    read = [each.name for each in draft.statistics if "statistic =" in each.keys]
    small = [
        name
        for name, each in fields.items()
        if each.transform == "log_bucket" or (each.codes is not None and 2 <= each.distinct <= _FEW)
    ]
    pairs = [*combinations(read, 2), *((one, other) for one in read for other in small)]
    for one, other in pairs:
        cross = DraftInput(f"{one}_by_{other}", f'cross = ["{one}", "{other}"]')
        if cross.name not in draft.names:
            yield adding((), (cross,))


def _combinations(one: Codes, other: Codes, larger: int) -> int:
    """Return how many combinations of two columns' values there are; 0 if they say nothing new.

    larger: values of the column that has more.
    """
    mixed = one.astype(np.int64) * (int(other.max()) + 1) + other
    count = _different(mixed)
    return 0 if count < _LEAST_MORE_COMBINATIONS * larger else count


def _different(numbers: npt.NDArray[np.integer]) -> int:
    """Return how many different numbers there are, faster than `np.unique`, which hashes."""
    return 1 + int(np.count_nonzero(np.diff(np.sort(numbers))))


def _pooled(draft: SpecDraft, name: str) -> SpecDraft:
    """Return the draft with the mean of a bag, in place of the sum over the root of its items."""
    return replace(
        draft,
        fields=tuple(
            each._replace(keys=each.keys.replace('pooling = "sqrt"', 'pooling = "mean"'))
            if each.name == name
            else each
            for each in draft.fields
        ),
    )


def adding(fields: tuple[DraftInput, ...], statistics: tuple[DraftInput, ...] = ()) -> Candidate:
    """Return the change that adds inputs, named like the last of them."""
    name = (*fields, *statistics)[-1].name
    return Candidate(name, lambda draft: draft.adding(fields, statistics))


def _cross(one: str, other: str) -> DraftInput:
    return DraftInput(f"{one}_x_{other}", f'transform = "cross", of = ["{one}", "{other}"]')


def _statistic(kind: str, of: str, draft: SpecDraft) -> DraftInput:
    """Return a statistic of a field; a rate has fine levels and the log's click rate as prior."""
    keys = f'statistic = "{kind}", of = "{of}"'
    if kind == "rate":
        clicks = _PRIOR_SHOWS * max(draft.clicks, 1) / draft.shows
        keys += f", prior_clicks = {clicks:.2g}, prior_shows = {_PRIOR_SHOWS:g}, per_doubling = 4"
    return DraftInput(f"{of}_{kind}", keys)
