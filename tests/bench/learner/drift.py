"""Measures how far models that keep learning, and models that stopped, are from the truth.

    python -m tests.bench.drift [--quick] [--json] [--chart FILE.html]

The news site of `deploy.demo.synthetic` runs for some days: items live for about a day and a half
and their appeal wanders; tastes and habits stay. The true probability of each click is known, so a
model's loss can be measured without the noise of the draws. A model's **regret** is the mean over
impressions of its expected log loss above that of the true probability,

    t log(t / p) + (1 - t) log((1 - t) / (1 - p))      t: the truth, p: the prediction

Four ways to use the same model start with the first day, which is not counted:

    online    learns each impression after predicting it, and never stops
    nightly   learns each finished day at night, on top of all before; frozen by day
    daily     a new model each night, trained on the finished day, predicts the next day
    frozen    keeps the state after the first day

The models are in `tests.bench.drift_models`. DIN reads the user's last clicks as of the beginning
of the quarter of an hour.

With --chart, regret by day as a page. The table has it by day, in thousandths of nats.
"""

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from headrace.deploy.demo.synthetic import SyntheticSite, SyntheticStream
from headrace.ingest.examples.batch import Examples, Kind
from headrace.ingest.features.encoder import Encoder
from headrace.learner.spec.model_spec import ModelSpec
from tests.bench.bench_options import bench_parser
from tests.bench.learner.core import Core
from tests.bench.learner.drift_models import MODELS, RECENT, spec_of

Floats = npt.NDArray[np.float64]

__all__ = ["WORLD", "Day", "make_days", "regret", "regrets", "spec_of"]

DAY_S = 86_400
START_MS = 1_700_000_000_000
WORLD = SyntheticSite(lifetime_s=1.5 * DAY_S, wander_s=3.0 * DAY_S)
_STEPS_A_DAY = 96  # the world changes every quarter of an hour
_REMEMBERED = 20  # clicks of a user


@dataclass(frozen=True, slots=True)
class Day:
    """The events of one day."""

    shown: list[dict[str, object]]  # RECENT among them
    truth: Floats  # (n,) probability of a click
    labels: npt.NDArray[np.uint8]  # (n,)


class _Clicked:
    """Which impressions were clicked so far, and what each user clicked last."""

    def __init__(self) -> None:
        self.ids = set[str]()
        self._shown: dict[str, dict[str, object]] = {}
        self._last: dict[object, deque[object]] = {}

    def tell(self, shown: list[dict[str, object]]) -> None:
        """Give each impression what its user clicked last, as far as it is known by now."""
        recent = {user: list(last) for user, last in self._last.items()}
        for each in shown:
            each[RECENT] = recent.get(each["user_id"], [])
            self._shown[str(each["impression_id"])] = each

    def add(self, clicks: list[dict[str, object]]) -> None:
        """Take clicks that came, in order of time."""
        for click in clicks:
            name = str(click["impression_id"])
            shown = self._shown.pop(name)
            self.ids.add(name)
            last = self._last.setdefault(shown["user_id"], deque(maxlen=_REMEMBERED))
            last.append(shown["category"])


def make_days(world: SyntheticSite, days: int, impressions_a_day: int, seed: int) -> list[Day]:
    """Let so many days pass."""
    site, found, clicked = SyntheticStream(world, seed, START_MS), [], _Clicked()
    requests = max(1, impressions_a_day // world.slate // _STEPS_A_DAY)
    for _ in range(days):
        shown: list[dict[str, object]] = []
        truth = []
        for _ in range(_STEPS_A_DAY):
            happened = site.step(site.now_ms + 1000 * DAY_S // _STEPS_A_DAY, requests)
            clicked.tell(happened.impressions)
            clicked.add(happened.clicks)
            shown += happened.impressions
            truth.append(happened.truth)
        found.append((shown, np.concatenate(truth)))
    clicked.add(site.step(site.now_ms + 1000 * DAY_S, 0).clicks)
    ever = clicked.ids
    return [
        Day(shown, truth, np.array([each["impression_id"] in ever for each in shown], np.uint8))
        for shown, truth in found
    ]


def examples_of(spec: ModelSpec, day: Day) -> Examples:
    """Return a day as the joiner would write it."""
    times = np.array([each["timestamp_ms"] for each in day.shown], np.int64)
    return Examples(
        fingerprint=spec.fields.fingerprint,
        watermark_ms=int(times[-1]),
        kinds=np.full(times.shape[0], Kind.CLOSED, np.uint8),
        labels=day.labels,
        event_ms=times,
        shown_ms=times,
        append_ms=times,
        impression_ids=pa.array([each["impression_id"] for each in day.shown]),
        request_ids=pa.array([each["request_id"] for each in day.shown]),
        features=Encoder(spec.fields).encode(day.shown),
        slices={},
    )


def regret(truth: Floats, scores: Floats) -> float:
    """Return the mean log loss to be expected above that of the truth, in nats; 0 for the truth."""
    gained = truth * np.log(truth / scores)
    lost = (1.0 - truth) * np.log((1.0 - truth) / (1.0 - scores))
    return float((gained + lost).mean())


def online(spec: ModelSpec, days: Sequence[Examples]) -> list[Floats]:
    """Return the scores of each day after the first, of a model that never stops."""
    core = Core(spec)
    return [_learned(core, day) for day in days][1:]


def frozen(spec: ModelSpec, days: Sequence[Examples]) -> list[Floats]:
    """Return the same of a model that stopped after the first day."""
    core = Core(spec)
    _learned(core, days[0])
    return [_answered(core, day) for day in days[1:]]


def nightly(spec: ModelSpec, days: Sequence[Examples]) -> list[Floats]:
    """Return the same of a model that learns each day when it is over, and keeps what it knows."""
    core, scores = Core(spec), []
    for yesterday, today in pairwise(days):
        _learned(core, yesterday)
        scores.append(_answered(core, today))
    return scores


def daily(spec: ModelSpec, days: Sequence[Examples]) -> list[Floats]:
    """Return the same of models that each learned the day before."""
    scores = []
    for yesterday, today in pairwise(days):
        core = Core(spec)
        _learned(core, yesterday)
        scores.append(_answered(core, today))
    return scores


WAYS: dict[str, Callable[[ModelSpec, Sequence[Examples]], list[Floats]]] = {
    "online": online,
    "nightly": nightly,
    "daily": daily,
    "frozen": frozen,
}


def regrets(spec: ModelSpec, days: Sequence[Day], way: str) -> list[float]:
    """Return the regret of each day after the first."""
    scores = WAYS[way](spec, [examples_of(spec, day) for day in days])
    return [regret(day.truth, made) for day, made in zip(days[1:], scores, strict=True)]


def _learned(core: Core, day: Examples) -> Floats:
    scores = core.learn([day]).scores
    assert scores is not None
    return scores


def _answered(core: Core, day: Examples) -> Floats:
    return core.model.predict(core.view, day.features, day.event_ms)


def draw(found: dict[str, dict[str, list[float]]], path: Path) -> None:
    """Write a page with regret by day."""
    import plotly.graph_objects as go

    figure = go.Figure()
    strokes = {"online": "solid", "nightly": "dashdot", "daily": "dash", "frozen": "dot"}
    for model, ways in found.items():
        for way, by_day in ways.items():
            figure.add_scatter(
                x=list(range(2, len(by_day) + 2)),
                y=by_day,
                name=f"{model}, {way}",
                line={"dash": strokes[way]},
            )
    figure.update_layout(
        title="Regret against the true probabilities of a click",
        xaxis_title="day",
        yaxis_title="nats an impression",
    )
    figure.write_html(path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = bench_parser("drift", __doc__, quick="6 days, not 12; fewer impressions")
    parser.add_argument("--chart", type=Path, help="page to write")
    chosen = parser.parse_args(arguments)
    days = make_days(WORLD, *((6, 8_000) if chosen.quick else (12, 60_000)), seed=1)
    found = {model: {way: regrets(spec_of(model), days, way) for way in WAYS} for model in MODELS}
    if chosen.chart:
        draw(found, chosen.chart)
    if chosen.json:
        means = {
            model: {way: float(np.mean(by_day)) for way, by_day in ways.items()}
            for model, ways in found.items()
        }
        print(json.dumps({"regret": means, "regret_by_day": found}))
        return
    table = Table("model", "way", "regret", *(f"day {2 + k}" for k in range(len(days) - 1)))
    for model, ways in found.items():
        for way, by_day in ways.items():
            table.add_row(
                model,
                way,
                f"{np.mean(by_day):.4f}",
                *(f"{1000 * each:.1f}" for each in by_day),
                end_section=way == "frozen",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
