"""The streams of the benchmark: generated logs, the synthetic site of the demo, the sample week.

A stream is a log of impressions with their clicks, the spec that learns it, and its examples as a
joiner makes them under the label policy of the spec. Times are scaled so that the log has the
wanted rate of impressions; the label window is scaled with them.
"""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.deploy.demo.synthetic import SyntheticSite, SyntheticStream
from headrace.ingest.events.contract import REQUEST_ID
from headrace.ingest.examples.batch import Examples
from headrace.ingest.features.encoder import Encoder
from headrace.learner.local.table_examples import TableEncoder
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from headrace.learner.suggestion.sample_stream import Clicks, joined, unlabelled
from tests.bench.generated.contenders import spec_text
from tests.bench.generated.log_generator import GeneratedLog, LogPlan, generate
from tests.bench.learner.core import Core

if TYPE_CHECKING:
    from tests.bench.ebnerd import week


Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

POLICIES = ("window", "immediate")
MODELS = ("lr", "fm", "dcn_v2")
NUMBER = "price"
"""A plain number that carries some of the log-odds: faults can change its unit."""
_SITE_FIELDS = ("user_id", "item_id", "category", "position", "device")
_ARCHITECTURES = {
    "lr": 'architecture = "logistic_regression"\n',
    "fm": 'architecture = "factorization_machine"\ndimensions = 8\ninit_scale = 0.05\n',
    "dcn_v2": 'architecture = "dcn_v2"\ndimensions = 8\ninit_scale = 0.05\nlayers = [32, 16]\n'
    "mini_batch = 32\n",
}


class GuardStream(NamedTuple):
    """A log as a learner meets it."""

    name: str
    spec: ModelSpec
    impressions: Examples  # (n,) CLOSED, labels not yet set
    clicks: Clicks

    def examples(self, clicks: Clicks | None = None) -> tuple[Examples, Ints]:
        """Return what a joiner writes, and of which impression each example is.

        clicks: other outcomes than those of the log.
        """
        return joined(self.spec, self.impressions, clicks or self.clicks)


def scaled(clicks: Clicks, rate: float) -> tuple[Clicks, float]:
    """Return outcomes at so many impressions a second, and by how much time was stretched."""
    shown_ms, click_ms = clicks
    begin, span = int(shown_ms[0]), max(int(shown_ms[-1] - shown_ms[0]), 1)
    factor = 1000.0 * shown_ms.shape[0] / rate / span
    moved = begin + ((shown_ms - begin) * factor).astype(np.int64)
    late = np.maximum(((click_ms - shown_ms) * factor).astype(np.int64), 1)
    return Clicks(moved, np.where(click_ms >= 0, moved + late, -1)), factor


def generated(plan: LogPlan, count: int, model: str, policy: str, rate: float) -> GuardStream:
    """Return the stream of a generated log."""
    log = generate(plan, count)
    clicks, factor = scaled(Clicks(log.shown_ms, log.click_ms), rate)
    text = spec_text(log, model).replace(
        f"window_s = {plan.window_s}",
        f'policy = "{policy}"\nwindow_s = {max(plan.window_s * factor, 0.001)}',
    )
    text = re.sub(
        r"click_delay_s = .*",
        lambda found: re.sub(
            r"\d[0-9.]*(e[+][0-9]+)?",
            lambda each: str(float(each[0]) * factor),
            found[0].partition("#")[0],
        ),
        text,
    )
    text = text.replace("[fields]", f'[fields]\n{NUMBER} = {{ number = 99, transform = "number" }}')
    spec = parse_spec(text, "guard.toml")
    shown = TableEncoder(spec.fields).examples(
        _columns(log), clicks.shown_ms, np.zeros(len(log), np.uint8)
    )
    return GuardStream(f"log {plan.number}", spec, shown, clicks)


def _columns(log: GeneratedLog) -> dict[str, pa.Array]:
    noise = np.random.default_rng([7, log.plan.number]).normal(0.0, 1.0, len(log))
    odds = np.log(log.truth / (1.0 - log.truth))
    price = np.abs(1.0 + 0.3 * (odds - odds.mean()) + 0.5 * noise)
    columns: dict[str, pa.Array] = {
        f"f{field}": pa.array(log.ids[:, field]) for field in range(log.ids.shape[1])
    }
    columns |= {REQUEST_ID: pa.array(log.requests).cast(pa.string()), NUMBER: pa.array(price)}
    if log.plan.bag_items:
        offsets = pa.array(log.bag_offsets.astype(np.int32))
        columns["bag"] = pa.ListArray.from_arrays(offsets, pa.array(log.bag_ids))
    return columns


def demo(count: int, model: str, policy: str, rate: float) -> GuardStream:
    """Return the stream of the demo's site, whose items live for some tens of seconds."""
    site = SyntheticStream(SyntheticSite(), 5, 1_700_000_000_000)
    shown: list[dict[str, object]] = []
    place: dict[object, int] = {}
    click_ms = np.full(count + 10_000, -1, np.int64)
    while len(shown) < count:
        requests = max(int(rate / site.world.slate / 10), 1)
        events = site.step(site.now_ms + int(1000 * requests * site.world.slate / rate), requests)
        for each in events.impressions:
            place[each["impression_id"]] = len(shown)
            shown.append(each)
        for click in events.clicks:
            click_ms[place[click["impression_id"]]] = click["timestamp_ms"]
    shown = shown[:count]
    fields = "\n".join(
        f'{name} = {{ number = {number}, transform = "id" }}'
        for number, name in enumerate(_SITE_FIELDS, 1)
    )
    text = (
        f'[model]\nname = "demo"\n{_ARCHITECTURES[model]}[label]\npolicy = "{policy}"\n'
        f"window_s = 10\n[fields]\n{fields}\n"
    )
    spec = parse_spec(text, "guard.toml")
    shown_ms = np.array([each["timestamp_ms"] for each in shown], np.int64)
    return GuardStream(
        "demo", spec, _encoded(spec, shown, shown_ms), Clicks(shown_ms, click_ms[:count])
    )


def sample_week(events: week.Events, count: int, model: str, policy: str) -> GuardStream:
    """Return the stream of the first impressions of the sample week, at their own rate."""
    fields = "\n".join(
        f'{name} = {{ number = {number}, transform = "id" }}'
        for number, name in enumerate(("article_id", "user_id", "page_id", "device_type"), 1)
    )
    crosses = 'cross = { number = 20, transform = "cross", of = ["article_id", "user_id"] }'
    text = (
        f'[model]\nname = "week"\n{_ARCHITECTURES[model]}[label]\npolicy = "{policy}"\n'
        f"window_s = 600\n[fields]\n{fields}\n{crosses}\n"
    )
    spec = parse_spec(text, "guard.toml")
    shown_ms, click_ms = events.clicks
    shown = _encoded(spec, events.impressions[:count], shown_ms[:count])
    return GuardStream("week", spec, shown, Clicks(shown_ms[:count], click_ms[:count]))


def _encoded(spec: ModelSpec, events: list[dict[str, object]], shown_ms: Ints) -> Examples:
    ids = (pa.array([str(each[key]) for each in events]) for key in ("impression_id", REQUEST_ID))
    return unlabelled(spec, Encoder(spec.fields).encode(events), shown_ms, *ids)


class BenchLearner(Core):
    """A model and its rows that can be copied."""

    def __init__(self, spec: ModelSpec, buckets: int = 16) -> None:
        super().__init__(spec, buckets)

    def copied(self) -> BenchLearner:
        """Return a copy that learns on by itself."""
        other = BenchLearner(self.spec, self.buckets)
        rows = self.view.everything()
        other.view.reserve(len(rows.ids))
        other.view.put(rows)
        other.model.memory = copy.deepcopy(self.model.memory)
        return other
