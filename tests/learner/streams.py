"""Random specs and random streams of examples, for tests that compare two ways of learning."""

from dataclasses import replace

import numpy as np
import pyarrow as pa

from headrace.ingest.examples.batch import Examples, Kind, reordered
from headrace.ingest.features.encoder import Encoded, Encoder
from headrace.learner.kernels.pending_deltas import PendingDeltas, view_of
from headrace.learner.models.factory import open_model
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from headrace.pserver.rows.deltas import RowDeltas
from headrace.pserver.rows.table import RowTable
from headrace.pserver.store import Shape

START_MS = 1_700_000_000_000
BUCKETS = 16

FIELDS = """
[model]
name = "test"

[label]
policy = "{policy}"
window_s = 600

[fields.item]
number = 1
transform = "id"

[fields.user]
number = 2
transform = "id"

[fields.both]
number = 3
transform = "cross"
of = ["user", "item"]

[fields.size]
number = 4
transform = "log_bucket"

[fields.price]
number = 5
transform = "number"
log1p = true

[fields.tags]
number = 6
transform = "bag"

[fields.words]
number = 7
transform = "bag"
"""

STATISTICS = """
[statistics.item_rate]
number = 40
statistic = "rate"
of = "item"
prior_clicks = {prior_clicks}
per_doubling = 3

[statistics.item_shows]
number = 41
statistic = "show"
of = "item"
per_doubling = 2

[statistics.user_clicks]
number = 42
statistic = "click"
of = "user"

[statistics.pair_age]
number = 43
statistic = "age"
of = "both"
per_doubling = 0.5

[statistics.crossed]
number = 45
cross = ["item_rate", "size", "pair_age"]

[statistics.crossed_item]
number = 44
cross = ["user_clicks", "item"]
"""

OPTIMIZER = """
[optimizer]
alpha = {alpha}
beta = {beta}
l1 = {l1}
l2 = {l2}
"""


COUNT = """
[admission]
kind = "count"
sightings = 4
filter_mb = 1
"""
PROBABILITY = """
[admission]
kind = "probability"
probability = 0.2
"""


def random_spec(
    random: np.random.Generator, policy: str, statistics: bool, growth: str = "", model: str = ""
) -> ModelSpec:
    """Return a spec with every transform, and constants drawn at random.

    growth: sections about it. model: further lines of the section of that name.
    """
    text = FIELDS.format(policy=policy).replace("[model]", "[model]\n" + model)
    if statistics:
        text += STATISTICS.format(prior_clicks=random.uniform(0.1, 2.0))
    text += OPTIMIZER.format(
        alpha=random.uniform(0.02, 0.5),
        beta=random.uniform(0.1, 2.0),
        l1=random.choice([0.0, 0.3]),
        l2=random.uniform(0.0, 3.0),
    )
    text += growth
    return parse_spec(of_ids_alone(text) if '"coin"' in text else text, "test.toml")


def of_ids_alone(text: str) -> str:
    """Return a spec's text with its number as buckets: coin betting takes none."""
    return text.replace('"number"\nlog1p = true', '"log_bucket"')


def random_examples(
    random: np.random.Generator, spec: ModelSpec, impressions: int, closed: bool
) -> Examples:
    """Return a stream of so many impressions over an hour, a third of them clicked in minutes."""
    events = [
        {
            "item": int(random.integers(12)),
            "user": f"u{random.integers(7)}",
            "size": int(random.integers(30)),
            "price": float(random.exponential(20.0)) if random.random() < 0.8 else None,
            "tags": [int(tag) for tag in random.integers(0, 5, random.integers(0, 4))],
            "words": [int(word) for word in random.integers(0, 5, random.integers(0, 3))],
        }
        for _ in range(impressions)
    ]
    shown_ms = START_MS + np.sort(random.integers(0, 3_600_000, impressions))
    clicked = np.flatnonzero(random.random(impressions) < 0.33)
    if closed:
        which, kinds = np.arange(impressions), np.full(impressions, Kind.CLOSED, np.uint8)
        labels = np.isin(which, clicked).astype(np.uint8)
        times = shown_ms
    else:
        click_ms = shown_ms[clicked] + random.integers(1, 300_000, clicked.shape[0])
        which = np.concatenate((np.arange(impressions), clicked))
        labels = np.repeat([0, 1], [impressions, clicked.shape[0]]).astype(np.uint8)
        times = np.concatenate((shown_ms, click_ms))
        order = np.argsort(times, kind="stable")
        which, labels, times = which[order], labels[order], times[order]
        kinds = np.where(labels > 0, Kind.CLICKED, Kind.SHOWN).astype(np.uint8)
    return Examples(
        fingerprint=spec.fields.fingerprint,
        watermark_ms=int(times.max(initial=0)),
        kinds=kinds,
        labels=labels,
        event_ms=times.astype(np.int64),
        shown_ms=shown_ms[which].astype(np.int64),
        append_ms=times.astype(np.int64),
        impression_ids=pa.array([f"i{i}" for i in which], pa.string()),
        request_ids=pa.nulls(which.shape[0], pa.string()),
        features=Encoder(spec.fields).encode([events[i] for i in which]),
        slices={},
    )


def in_requests(examples: Examples, size: int) -> Examples:
    """Return the impressions in requests of so many neighbours, which share the first field."""
    shown = reordered(examples, np.flatnonzero(examples.kinds != Kind.CLICKED))
    first = np.arange(len(shown)) // size * size
    ids, times = shown.features.ids.copy(), shown.shown_ms[first]
    ids[:, 0] = ids[first, 0]
    return replace(
        shown,
        features=replace(shown.features, ids=ids),
        event_ms=times,
        shown_ms=times,
        request_ids=pa.array([f"r{each}" for each in first]),
    )


def counted(spec: ModelSpec) -> dict[str, int]:
    """Return name and number of everything that has one row an example."""
    fields = {each.name: each.number for each in (*spec.fields.singles, *spec.fields.numbers)}
    return fields | {each.name: each.number for each in spec.statistics}


def part(examples: Examples, begin: int, end: int) -> Examples:
    """Return examples [begin, end) as a batch of their own."""
    features, count = examples.features, len(examples)
    bags = (features.bag_offsets.shape[0] - 1) // max(count, 1)
    end = min(end, count)
    offsets = features.bag_offsets[begin * bags : end * bags + 1]
    rows = slice(begin, end)
    return Examples(
        examples.fingerprint,
        examples.watermark_ms,
        examples.kinds[rows],
        examples.labels[rows],
        examples.event_ms[rows],
        examples.shown_ms[rows],
        examples.append_ms[rows],
        examples.impression_ids.slice(begin, end - begin),
        examples.request_ids.slice(begin, end - begin),
        Encoded(
            features.ids[rows],
            features.bag_ids[offsets[0] : offsets[-1]],
            offsets - offsets[0],
            features.numbers[rows],
        ),
        {},
        None if examples.weights is None else examples.weights[rows],
    )


class Bench:
    """A model with its view and pending deltas: what a learner holds."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.model = open_model(spec, BUCKETS)
        self.view = view_of(spec.width)
        self.shape = Shape(spec.name, BUCKETS, spec.width, spec.fingerprint, "")
        self.pending = PendingDeltas(self.view, self.shape)

    def learn(self, examples: Examples, inactive: tuple[int, ...] = ()) -> np.ndarray:
        """Learn a batch; `inactive` buckets already have it."""
        active = np.ones(BUCKETS, np.bool_)
        active[list(inactive)] = False
        self.view.reserve(self.model.rows_needed(examples))
        return self.model.learn(self.view, self.pending.reserve(), active, examples)

    def rows(self) -> RowDeltas:
        """The rows of the view, by ascending id, without those that nothing happened to."""
        return sorted_rows(self.view)

    def gained(self) -> RowDeltas:
        """The deltas of all buckets since the last call, by ascending id."""
        taken = self.pending.take(range(BUCKETS))
        deltas = RowDeltas(
            *(np.concatenate(column) for column in zip(*taken.values(), strict=True))
        )
        return deltas.chosen(np.argsort(deltas.ids))


def sorted_rows(view: RowTable) -> RowDeltas:
    """Return the rows of a table by ascending id."""
    columns, count = view.columns, len(view)
    order = np.argsort(columns.ids[:count])
    return RowDeltas(
        columns.ids[:count][order],
        columns.shows[:count][order].astype(np.uint32),
        columns.clicks[:count][order].astype(np.uint32),
        columns.first_seen[:count][order],
        columns.last_seen[:count][order],
        columns.values[:count][order],
    )
