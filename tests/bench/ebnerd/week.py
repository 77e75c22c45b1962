"""Measures the accuracy of a model on a week of real traffic, with its rows in memory.

    python -m tests.bench.week [--model FILE] [--partitions N] [--quick] [--json]

One process reads the week's events, encodes and joins them in order of event time, and learns them
with the model of the spec. Each impression is scored before it is learned. There is no Kafka and no
parameter server, so the figures are those of the model. `--partitions` uses the order in which a
learner gets the events of that many partitions: in batches of a minute, one partition after the
other. A spec with a bag of `recent` gets the user's earlier clicks (tests.bench.week_history).

The data may be used for research only and is not part of this repository. HEADRACE_WEEK names its
directory, by default `../shared/data/ebnerd_week1`. Benchmarks that need it report if it is
missing, and measure nothing.
"""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import zstandard

from headrace.ingest.examples.batch import Examples, Kind
from headrace.ingest.features.encoder import Encoded, Encoder
from headrace.ingest.features.hashing import hash_strings
from headrace.ingest.features.label_policy import Policy
from headrace.learner.spec.model_spec import ModelSpec, load_spec
from headrace.learner.validation.progressive import ProgressiveValidation, progressive
from headrace.pserver.rows.table import RowTable
from tests.bench.bench_options import bench_parser, print_figures
from tests.bench.ebnerd.week_history import events_for
from tests.bench.learner.core import Core

Integers = npt.NDArray[np.int64]

_ROOT = Path(__file__).resolve().parents[3]
WEEK = Path(os.environ.get("HEADRACE_WEEK", _ROOT.parent / "shared/data/ebnerd_week1"))
_BATCH = 4096
_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class Events:
    """A log in memory, sorted by time."""

    impressions: list[dict[str, Any]]
    impression_ids: pa.StringArray
    request_ids: pa.StringArray
    shown_ms: Integers
    clicked: Integers  # (clicks,) which impression
    clicked_ms: Integers  # (clicks,)


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


def run(spec: ModelSpec, events: Events, partitions: int = 1, batch: int = _BATCH) -> Outcome:
    """Learn the events in order; return the accuracy of the scores made on the way."""
    return learn(spec, events, encode(spec, events), partitions, batch)


def learn(
    spec: ModelSpec, events: Events, encoded: Encoded, partitions: int = 1, batch: int = _BATCH
) -> Outcome:
    """`run`, with the fields encoded already."""
    which, kinds, labels, times = join(spec, events)
    order = _order(events, which, times, partitions)
    which, kinds, labels, times = which[order], kinds[order], labels[order], times[order]
    core = Core(spec)
    scores = np.full(len(events.impressions), np.nan)
    seconds = 0.0
    for begin in range(0, which.shape[0], batch):
        part = slice(begin, begin + batch)
        examples = _examples(
            spec, events, encoded, which[part], kinds[part], labels[part], times[part]
        )
        started = time.perf_counter()
        made = core.learn_batch(examples)
        seconds += time.perf_counter() - started
        scored = ~np.isnan(made)
        scores[which[part][scored]] = made[scored]
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
        figures, (first, second), seconds, which.shape[0], len(core.view), scores, core.view
    )


def rows_of(encoded: Encoded, part: slice | Integers) -> Encoded:
    """Return the fields of chosen events, with the items of their bags."""
    count, begins = len(encoded), encoded.bag_offsets[:-1]
    ids, numbers = encoded.ids[part], encoded.numbers[part]
    if not count or not begins.shape[0]:
        return Encoded(ids, encoded.bag_ids[:0], np.zeros(1, np.int32), numbers)
    lengths = np.diff(encoded.bag_offsets).reshape(count, -1)[part].reshape(-1)
    begins = begins.reshape(count, -1)[part].reshape(-1)
    offsets = np.zeros(lengths.shape[0] + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    items = np.repeat(begins - offsets[:-1], lengths) + np.arange(offsets[-1])
    return Encoded(ids, encoded.bag_ids[items], offsets, numbers)


def join(
    spec: ModelSpec, events: Events
) -> tuple[Integers, npt.NDArray[np.uint8], npt.NDArray[np.uint8], Integers]:
    """Return which impression, kind, label and time of each example, in order of time."""
    everyone = np.arange(len(events.impressions))
    in_time = events.clicked_ms - events.shown_ms[events.clicked] <= spec.fields.label.window_ms
    clicked, clicked_ms = events.clicked[in_time], events.clicked_ms[in_time]
    if spec.fields.label.policy is Policy.WINDOW:
        labels = np.zeros(everyone.shape[0], np.uint8)
        labels[clicked] = 1
        kinds = np.full(everyone.shape[0], Kind.CLOSED, np.uint8)
        return everyone, kinds, labels, events.shown_ms
    which = np.concatenate((everyone, clicked))
    times = np.concatenate((events.shown_ms, clicked_ms))
    kinds = np.repeat(
        np.array([Kind.SHOWN, Kind.CLICKED], np.uint8), [everyone.shape[0], clicked.shape[0]]
    )
    order = np.lexsort((kinds, times))
    return which[order], kinds[order], (kinds[order] == Kind.CLICKED).astype(np.uint8), times[order]


def _order(events: Events, which: Integers, times: Integers, partitions: int) -> Integers:
    if partitions == 1:
        return np.arange(which.shape[0])
    partition = hash_strings(events.impression_ids)[which] % np.uint64(partitions)
    return np.lexsort((times, partition, times // _MINUTE_MS))


def _examples(
    spec: ModelSpec,
    events: Events,
    encoded: Encoded,
    which: Integers,
    kinds: npt.NDArray[np.uint8],
    labels: npt.NDArray[np.uint8],
    times: Integers,
) -> Examples:
    features = rows_of(encoded, which)
    return Examples(
        fingerprint=spec.fields.fingerprint,
        watermark_ms=int(times.max(initial=0)),
        kinds=kinds,
        labels=labels,
        event_ms=times,
        shown_ms=events.shown_ms[which],
        append_ms=times,
        impression_ids=events.impression_ids.take(pa.array(which)),
        request_ids=events.request_ids.take(pa.array(which)),
        features=features,
        slices={},
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what a model of the command line reaches, by default each that is ready to run."""
    parser = bench_parser("week", "Accuracy on the sample week.", quick="of those, `news` alone")
    parser.add_argument("--model", type=Path, action="append", help="spec; may be repeated")
    parser.add_argument("--data", type=Path, default=WEEK)
    parser.add_argument("--partitions", type=int, default=1)
    chosen = parser.parse_args(arguments)
    leave_without(chosen.data)
    events = read_events(chosen.data)
    ready = "news.toml" if chosen.quick else "news*.toml"
    models = chosen.model or sorted((_ROOT / "deploy/models").glob(ready))
    results = {}
    for path in models:
        outcome = run(load_spec(path), events, chosen.partitions)
        result = asdict(outcome.figures)
        for name, half in zip(("first", "second"), outcome.halves, strict=True):
            result |= {f"{name}_half_{key}": value for key, value in asdict(half).items()}
        result |= {"seconds": outcome.seconds, "examples": outcome.examples, "rows": outcome.rows}
        results[path.stem] = result
    print_figures(results, as_json=chosen.json)


if __name__ == "__main__":
    main()
