"""The synthetic stream that all contenders learn, and its known truth.

It resembles a log of advertisements. It has 26 fields of ids with ten to four million values each,
ten million possible ids together. Their ranks have a Zipf distribution: a few values make most of
the traffic, and most values occur once. It also has 13 numbers, counts on a logarithmic scale. A
click is drawn with log-odds that are a sum of one effect per id and one slope per number. The best
possible log loss is therefore known: that of the truth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.ingest.examples.batch import Examples, Kind
from headrace.ingest.features.encoder import Encoded
from headrace.ingest.features.hashing import field_ids
from headrace.learner.spec.model_spec import ModelSpec, parse_spec

IDS, NUMBERS = 26, 13
VALUES = np.geomspace(10, 4_000_000, IDS).astype(np.int64)
"""Possible values of each field, 9.9 million in all."""
BATCH = 4096
START_MS = 1_700_000_000_000
_EXPONENT = 1.1
_BASE = -3.2
"""Log-odds where everything else is zero: clicks for some 8 % of impressions."""
_EFFECT = 0.3
"""Standard deviation of an id's effect, so 1.5 for all of an example's."""


LR = """
[optimizer]
name = "ftrl"
alpha = 0.15
beta = 1.0
l1 = 0.0
l2 = 1.0
"""
"""The optimizer of logistic regression over this stream."""


@dataclass(frozen=True, slots=True)
class Stream:
    """n examples in order, each of k ids and m numbers."""

    values: npt.NDArray[np.int64]  # (k,) how many a field may have
    ranks: npt.NDArray[np.int64]  # (n, k) of the value within its field, from 0 to all of them
    numbers: npt.NDArray[np.float32]  # (n, m)
    truth: npt.NDArray[np.float64]  # (n,) the probability of a click; NaN if unknown
    labels: npt.NDArray[np.uint8]  # (n,)

    def __len__(self) -> int:
        return int(self.labels.shape[0])

    @property
    def indexes(self) -> npt.NDArray[np.int64]:
        """Every id's own number, fields numbered through; shape (n, k)."""
        return self.ranks + np.concatenate(([0], np.cumsum(self.values + 1)[:-1]))

    @property
    def all_indexes(self) -> int:
        """The number of possible indexes: each index is below it."""
        return int((self.values + 1).sum())

    def first(self, count: int) -> Stream:
        """Return its first examples."""
        rows = self.ranks[:count], self.numbers[:count], self.truth[:count], self.labels[:count]
        return Stream(self.values, *rows)


def make_stream(examples: int, seed: int) -> Stream:
    """Draw a stream; the truth is the same for every seed."""
    random = np.random.default_rng(seed)
    ranks = np.empty((examples, IDS), np.int64)
    log_odds = np.full(examples, _BASE)
    first_index = np.concatenate(([0], np.cumsum(VALUES + 1)[:-1]))
    for k, most in enumerate(VALUES.tolist()):
        # the inverse of a bounded Pareto distribution, cut to whole ranks
        rank = ((most ** (1 - _EXPONENT) - 1) * random.random(examples) + 1) ** (
            1 / (1 - _EXPONENT)
        )
        ranks[:, k] = rank
        log_odds += _effects(ranks[:, k] + first_index[k])
    numbers = np.log1p(random.gamma(0.5, 4.0, (examples, NUMBERS))).astype(np.float32)
    slopes = 0.2 * np.cos(np.arange(NUMBERS))  # some of each sign
    truth = 1.0 / (1.0 + np.exp(-(log_odds + (numbers - 0.8) @ slopes)))
    labels = (random.random(examples) < truth).astype(np.uint8)
    return Stream(VALUES, ranks, numbers, truth, labels)


def _effects(indexes: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return what ids add to the log-odds: uniform, a function of the id alone."""
    words = indexes.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    words ^= words >> np.uint64(29)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    uniform = (words >> np.uint64(11)) * 2.0**-53 - 0.5
    return np.asarray(uniform * (_EFFECT * 12**0.5), np.float64)


def stream_spec(
    model: str = "", *, name: str = "bench", numbers: bool = True, more: str = ""
) -> ModelSpec:
    """Return a model of the stream, each impression learned once.

    model: further lines of its section, which may make another model of it than logistic
    regression; more: further sections.
    """
    kinds = dict.fromkeys(range(1, IDS + 1), "id")
    if numbers:
        kinds |= dict.fromkeys(range(IDS + 1, IDS + NUMBERS + 1), "number")
    fields = "".join(
        f'[fields.f{k}]\nnumber = {k}\ntransform = "{kind}"\n' for k, kind in kinds.items()
    )
    text = f'[model]\nname = "{name}"\n{model}[label]\npolicy = "window"\n{fields}{more}'
    return parse_spec(text, "bench.toml")


def batches_of(spec: ModelSpec, stream: Stream, batch: int = BATCH) -> list[Examples]:
    """Return the stream as the joiner would write it. The name of an impression is its number."""
    ids = np.empty(stream.ranks.shape, np.uint64)
    for k, field in enumerate(spec.fields.singles):
        ids[:, k] = field_ids(stream.ranks[:, k].astype(np.uint64), field.number)
    numbers = stream.numbers[:, : len(spec.fields.numbers)]
    return [
        _examples(spec, ids, numbers, stream.labels, begin, min(begin + batch, len(stream)))
        for begin in range(0, len(stream), batch)
    ]


def _examples(
    spec: ModelSpec,
    ids: npt.NDArray[np.uint64],
    numbers: npt.NDArray[np.float32],
    labels: npt.NDArray[np.uint8],
    begin: int,
    end: int,
) -> Examples:
    count = end - begin
    times = START_MS + np.arange(begin, end, dtype=np.int64)
    return Examples(
        fingerprint=spec.fields.fingerprint,
        watermark_ms=int(times[-1]),
        kinds=np.full(count, Kind.CLOSED, np.uint8),
        labels=labels[begin:end],
        event_ms=times,
        shown_ms=times,
        append_ms=times,
        impression_ids=pc.utf8_lpad(pa.array(np.arange(begin, end)).cast(pa.string()), 16, "0"),
        request_ids=pa.nulls(count, pa.string()),
        features=Encoded(
            np.ascontiguousarray(ids[begin:end]),
            np.zeros(0, np.uint64),
            np.zeros(1, np.int32),
            np.ascontiguousarray(numbers[begin:end]),
        ),
        slices={},
    )
