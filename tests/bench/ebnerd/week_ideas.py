"""Measures what each idea for more accuracy brings on the sample week, alone and together.

    python -m tests.bench.week_ideas [--quick] [--json] [--idea NAME ...] [--data DIR]

The base is a model of `tests.bench.week_table` with statistics and the immediate policy. Each idea
adds inputs to it, or changes its vectors or its loss. The first half of the week decides what is
together. The second half is reported, as in the table of models. *Mixed* is the mean of the
log-odds of several models, which learn the same events. `--quick` measures logistic regression
alone; otherwise DCN-V2 follows. With `--idea`, only the named ideas are measured, and no mixture.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from headrace.learner.validation.progressive import progressive
from tests.bench.bench_options import bench_parser
from tests.bench.ebnerd.week import WEEK, Events, Outcome, encode, learn, leave_without, read_events
from tests.bench.ebnerd.week_table import spec_of


class Idea(NamedTuple):
    """A change of a spec."""

    fields: str = ""
    statistics: str = ""
    dimensions: int | None = None
    """Of all vectors; None: those of the base."""
    choice: bool = False
    """Whether the candidates of a request compete."""


def _rate(number: int, name: str, of: str, per_doubling: int = 4) -> str:
    return (
        f'[statistics.{name}]\nnumber = {number}\nstatistic = "rate"\nof = "{of}"\n'
        f"prior_clicks = 0.9\nprior_shows = 10.0\nper_doubling = {per_doubling}\n\n"
    )


def _window(number: int, seconds: int) -> Idea:
    """Return the article's click rate in the current period of this length."""
    fields = (
        f'[fields.period_{seconds}]\nnumber = {number}\ntransform = "period"\n'
        f"period_s = {seconds}\n\n"
        f'[fields.article_{seconds}]\nnumber = {number + 1}\ntransform = "cross"\n'
        f'of = ["article", "period_{seconds}"]\n\n'
    )
    return Idea(fields, _rate(number + 40, f"rate_{seconds}", f"article_{seconds}", 2))


def _together(*ideas: Idea) -> Idea:
    return Idea("".join(each.fields for each in ideas), "".join(each.statistics for each in ideas))


_SHOWS = Idea(
    statistics=(
        '[statistics.article_shows]\nnumber = 80\nstatistic = "show"\nof = "article"\n'
        "per_doubling = 1\n\n"
        '[statistics.rate_by_shows]\nnumber = 81\ncross = ["article_rate", "article_shows"]\n\n'
    )
)
_PAGE = Idea(statistics=_rate(82, "page_article_rate", "page_article"))
_DEVICE = Idea(
    '[fields.article_device]\nnumber = 30\ntransform = "cross"\nof = ["article", "device"]\n\n',
    _rate(83, "device_article_rate", "article_device"),
)
_USER = Idea(statistics=_rate(84, "user_article_rate", "user_article"))
_ALL = _together(_SHOWS, _PAGE, _DEVICE, _USER)
IDEAS = {
    "base": Idea(),
    "rate in 10 minutes": _window(20, 600),
    "rate in an hour": _window(20, 3600),
    "rates in 10 minutes, 1 and 6 hours": _together(
        _window(20, 600), _window(22, 3600), _window(24, 21600)
    ),
    "shows of the article, by its rate": _SHOWS,
    "rate of the article on the page": _PAGE,
    "rate of the article on the device": _DEVICE,
    "rate of the user and article": _USER,
    "shows and all three rates": _ALL,
    "choice": Idea(choice=True),
    "choice, shows and all three rates": _ALL._replace(choice=True),
}
VECTORS = {f"vectors of {n}": Idea(dimensions=n) for n in (4, 16)}
"""Only for models with vectors."""
_TOGETHER = "shows and all three rates"
MIXED = ("logistic regression", "DeepFM", "DCN-V2")


def changed(spec: ModelSpec, idea: Idea) -> ModelSpec:
    """Return the spec with an idea."""
    text = spec.text
    statistics, optimizer = text.index("[statistics."), text.index("[optimizer]")
    text = (
        text[:statistics]
        + idea.fields
        + text[statistics:optimizer]
        + idea.statistics
        + text[optimizer:]
    )
    if idea.choice:
        text = text.replace("[model]\n", '[model]\nloss = "choice"\n', 1)
    if idea.dimensions is not None:
        text = re.sub("dimensions = .*", f"dimensions = {idea.dimensions}", text)
    return parse_spec(text, "an idea")


def measure(model: str, idea: Idea, events: Events) -> Outcome:
    """Learn the week."""
    spec = changed(spec_of(model, "statistics", "immediate"), idea)
    return learn(spec, events, encode(spec, events))


def mixed(scores: Sequence[npt.NDArray[np.float64]], events: Events) -> tuple[float, float, float]:
    """Return the figures of the second half of the mean log-odds."""
    odds = np.mean([np.log(each) - np.log1p(-each) for each in scores], axis=0)
    outcome = np.zeros(odds.shape[0], np.uint8)
    outcome[events.clicked] = 1
    requests = events.request_ids.dictionary_encode().indices.to_numpy().astype(np.int64)
    half = slice(odds.shape[0] // 2, None)
    found = progressive(outcome[half], 1.0 / (1.0 + np.exp(-odds[half])), requests[half])
    return found.auc, found.request_auc, found.log_loss


def work_of(names: Sequence[str], *, quick: bool) -> list[tuple[str, str, Idea]]:
    """Return each model and idea to measure, of the ideas with these names."""
    work = [("logistic regression", name, IDEAS[name]) for name in names if name in IDEAS]
    if not quick:
        work += [("DCN-V2", name, (IDEAS | VECTORS)[name]) for name in names]
        if len(names) == len(IDEAS | VECTORS):
            work.append(("DeepFM", _TOGETHER, IDEAS[_TOGETHER]))
    return work


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = bench_parser("week_ideas", __doc__, quick="logistic regression alone")
    known = [*IDEAS, *VECTORS]
    parser.add_argument("--idea", choices=known, action="append", help="may be repeated")
    parser.add_argument("--data", type=Path, default=WEEK)
    chosen = parser.parse_args(arguments)
    leave_without(chosen.data)
    events, console = read_events(chosen.data), Console(stderr=chosen.json)
    work = work_of(chosen.idea or known, quick=chosen.quick)
    table = Table("model", "idea", "AUC", "within a request", "log loss", "first half")
    rows: list[tuple[str, str, float, float, float, float | None]] = []
    kept = {}
    with Progress(console=console) as progress:
        task = progress.add_task("", total=len(work))
        for model, name, idea in work:
            progress.update(task, description=f"{model}, {name}")
            outcome = measure(model, idea, events)
            first, half = outcome.halves
            rows.append((model, name, half.auc, half.request_auc, half.log_loss, first.log_loss))
            if name == _TOGETHER:
                kept[model] = outcome.scores
            progress.advance(task)
    if kept.keys() >= set(MIXED):
        scores = [kept[model] for model in MIXED]
        rows.append((", ".join(MIXED), f"mixed, {_TOGETHER}", *mixed(scores, events), None))
    for model, name, *figures in rows:
        table.add_row(model, name, *("" if each is None else f"{each:.4f}" for each in figures))
    if chosen.json:
        keys = ("model", "idea", "auc", "within", "log_loss", "first_log_loss")
        print(json.dumps({"rows": [dict(zip(keys, each, strict=True)) for each in rows]}))
    else:
        console.print(table)


if __name__ == "__main__":
    main()
