"""Learns a week of real traffic in one process, with the rows of the model in memory.

The events are read, encoded and joined in order of event time, and learned with the model of a
spec. Each impression is scored before it is learned. There is no Kafka and no parameter server, so
the figures are those of the model. A spec with a bag of `recent` gets the user's earlier clicks
(`week_history`).

The data may be used for research only and is not part of this repository. HEADRACE_WEEK names its
directory, by default `../shared/data/ebnerd_week1`. Benchmarks that need it report if it is
missing, and measure nothing.
"""

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import zstandard

from headrace.ingest.examples.splitting import part_of
from headrace.ingest.features.encoder import Encoded, Encoder
from headrace.learner.spec.model_spec import ModelSpec
from headrace.learner.suggestion.sample_stream import Clicks, joined, unlabelled
from headrace.learner.validation.progressive import ProgressiveValidation, progressive
from headrace.pserver.rows.table import RowTable
from tests.bench.ebnerd.week_history import events_for
from tests.bench.learner.core import Core

Integers = npt.NDArray[np.int64]

_ROOT = Path(__file__).resolve().parents[3]
WEEK = Path(os.environ.get("HEADRACE_WEEK", _ROOT.parent / "shared/data/ebnerd_week1"))
_BATCH = 4096


@dataclass(frozen=True, slots=True)
class Events:
    """A log in memory, sorted by time."""

    impressions: list[dict[str, Any]]
    impression_ids: pa.StringArray
    request_ids: pa.StringArray
    shown_ms: Integers
    clicked: Integers  # (clicks,) which impression
    clicked_ms: Integers  # (clicks,)

    @property
    def clicks(self) -> Clicks:
        """The outcome of each impression."""
        click_ms = np.full(len(self.impressions), -1, np.int64)
        click_ms[self.clicked] = self.clicked_ms
        return Clicks(self.shown_ms, click_ms)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of a run."""

    figures: ProgressiveValidation
    halves: tuple[ProgressiveValidation, ProgressiveValidation]
    """Of the impressions in order of time: constants are chosen by the first, and the second is
    reported."""
    seconds: float
    """Of learning alone."""
    examples: int
    rows: int
    scores: npt.NDArray[np.float64]  # (impressions,)
    view: RowTable


def leave_without(directory: Path) -> None:
    """End the process, successfully and with a sentence, if the sample week is not there."""
    if not (directory / "impressions.ndjson.zst").is_file():
        print(
            f"not measured: the sample week is not in {directory} (it may be used for research only"
            " and is not shipped; HEADRACE_WEEK names another directory)",
            file=sys.stderr,
        )
        sys.exit(0)


def read_events(directory: Path) -> Events:
    """Read a log of impressions and clicks."""
    impressions = [orjson.loads(line) for line in _lines(directory / "impressions.ndjson.zst")]
    clicks = [orjson.loads(line) for line in _lines(directory / "clicks.ndjson.zst")]
    ids = pa.array([each["impression_id"] for each in impressions], pa.string())
    clicked = pc.index_in(pa.array([each["impression_id"] for each in clicks]), value_set=ids)
    return Events(
        impressions,
        ids,
        pa.array([each.get("request_id") for each in impressions], pa.string()),
        np.array([each["timestamp_ms"] for each in impressions], np.int64),
        clicked.to_numpy().astype(np.int64),
        np.array([each["timestamp_ms"] for each in clicks], np.int64),
    )


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as packed, zstandard.ZstdDecompressor().stream_reader(packed) as plain:
        yield from plain.read().splitlines()


def encode(spec: ModelSpec, events: Events) -> Encoded:
    """Return the fields of all impressions, with the user's recent clicks where the spec asks."""
    return Encoder(spec.fields).encode(events_for(spec.fields, events))


def run(spec: ModelSpec, events: Events) -> Outcome:
    """Learn the events in order; return the accuracy of the scores made on the way."""
    return learn(spec, events, encode(spec, events))


def learn(spec: ModelSpec, events: Events, encoded: Encoded) -> Outcome:
    """`run`, with the fields encoded already."""
    ids = events.impression_ids, events.request_ids
    shown = unlabelled(spec, encoded, events.shown_ms, *ids)
    examples, which = joined(spec, shown, events.clicks)
    core = Core(spec)
    scores = np.full(len(shown), np.nan)
    seconds = 0.0
    for begin in range(0, len(examples), _BATCH):
        part = part_of(examples, begin, min(begin + _BATCH, len(examples)))
        started = time.perf_counter()
        made = core.learn_batch(part)
        seconds += time.perf_counter() - started
        scored = ~np.isnan(made)
        scores[which[begin : begin + _BATCH][scored]] = made[scored]
    outcome = np.zeros(len(events.impressions), np.uint8)
    outcome[events.clicked] = 1
    requests = events.request_ids.dictionary_encode().indices.to_numpy().astype(np.int64)
    figures = progressive(outcome, scores, requests)
    middle = scores.shape[0] // 2
    first, second = (
        progressive(outcome[half], scores[half], requests[half])
        for half in (slice(middle), slice(middle, None))
    )
    return Outcome(
        figures, (first, second), seconds, len(examples), len(core.view), scores, core.view
    )
