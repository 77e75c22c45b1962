"""Compares runs: the settings that differ, and their figures side by side.

Specs are compared key by key, after TOML is parsed, so order and comments do not count.
"""

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headrace.deploy.reports.tracking.tracked_run import TrackedRun

_MISSING = "-"
MOST_COLUMNS = 3
"""With more runs, each run is a row of the table."""


class RunComparison(NamedTuple):
    """Two runs or more, side by side."""

    ids: tuple[str, ...]
    settings: dict[str, tuple[str, ...]]
    """Keys whose values differ, with the value of each run; "-" if it is missing."""
    figures: dict[str, tuple[float | None, ...]]
    """Figures that two runs have, or all of them for one run; None if it is missing."""

    def lines(self) -> list[str]:
        """Return the comparison as a table of text: a column for each run, or a row if many."""
        texts = {
            name: tuple(_MISSING if value is None else f"{value:,.6g}" for value in values)
            for name, values in self.figures.items()
        }
        rows = [("", *self.ids)]
        rows += [(name, *values) for name, values in (self.settings | texts).items()]
        if len(self.ids) > MOST_COLUMNS:
            rows = list(zip(*rows, strict=True))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return [
            f"{first:{widths[0]}}  "
            + "  ".join(f"{text:>{width}}" for text, width in zip(rest, widths[1:], strict=True))
            for first, *rest in rows
        ]


def compare_runs(runs: Sequence[TrackedRun]) -> RunComparison:
    """Compare runs, of one kind or several."""
    found = [described(run) for run in runs]
    names = dict.fromkeys(name for each in found for name in each)
    settings = {
        name: tuple(each.get(name, _MISSING) for each in found)
        for name in names
        if len({each.get(name, _MISSING) for each in found}) > 1
    }
    least = min(2, len(runs))
    figures = {
        name: tuple(run.figures.get(name) for run in runs)
        for name in dict.fromkeys(name for run in runs for name in run.figures)
        if sum(name in run.figures for run in runs) >= least
    }
    return RunComparison(tuple(run.id for run in runs), settings, figures)


def described(run: TrackedRun) -> dict[str, str]:
    """Return everything that describes a run, as text by key; keys of the spec are dotted."""
    own = {
        "kind": str(run.kind),
        "state": str(run.state),
        "version": run.version,
        "commit": run.commit,
        "seed": "" if run.seed is None else str(run.seed),
        "data": ", ".join(run.data),
    }
    flat = _flat(_parsed(run.spec)) | {key: str(value) for key, value in run.settings.items()}
    return {key: value for key, value in own.items() if value} | flat


def _parsed(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return {}


def _flat(table: Mapping[str, Any], before: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{before}{key}.")
        else:
            found[f"{before}{key}"] = str(value)
    return found
