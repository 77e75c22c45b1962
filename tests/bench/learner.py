"""How fast the learner's core is: examples a second, on one core, with rows in memory.

    python -m tests.bench.learner [--quick] [--json]

`core_lr` is logistic regression over 26 ids an example, Zipf-distributed over fields of ten to
millions of values as in ad logs, nothing else: no Kafka, no parameter server. The rows' pending
gains are kept as for a push. The first pass over the stream adds rows; what is reported is the
median pass after it, over rows that are there, and `core_lr_new_rows` the first.

`core_fm` and `core_deepfm` are a factorization machine and a DeepFM over the same stream, with
vectors of 16 floats, layers of 128 and 64, and mini-batches of 256.

`core_lr_admission` is the same with rows made at the third sighting, over streams drawn anew from
the same distribution, and `core_lr_drawn` without admission over the same streams. Compare these
two; their `_rows` say what it is for.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ingest.examples import Encoded, Examples, Kind
from ingest.values import field_ids
from learner.models import open_model
from learner.pending import Pending
from learner.spec import ModelSpec, parse_spec
from pserver.store import Shape
from pserver.table import RowTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

FIELDS = 26
FACTORIZATION_MACHINE = 'architecture = "factorization_machine"\ndimensions = 16\n'
DEEPFM = 'architecture = "deepfm"\ndimensions = 16\nlayers = [128, 64]\nmini_batch = 256\n'
_BATCH = 4096
_BUCKETS = 64
_START_MS = 1_700_000_000_000


def zipf_ids(
    random: np.random.Generator, examples: int, exponent: float, values: float
) -> npt.NDArray[np.uint64]:
    """Return ids of 26 fields, from 10 to `values` values each; shape (examples, 26)."""
    ids = np.empty((examples, FIELDS), np.uint64)
    for k, most in enumerate(np.geomspace(10, values, FIELDS)):
        # the inverse of a bounded Pareto distribution, cut to whole ranks
        draw = random.random(examples)
        rank = ((most ** (1 - exponent) - 1) * draw + 1) ** (1 / (1 - exponent))
        ids[:, k] = field_ids(rank.astype(np.uint64), k + 1)
    return ids


def plain_spec(model: str = "") -> ModelSpec:
    """Return logistic regression over 26 plain ids, each impression learned once.

    model: further lines of its section, which may make another model of it.
    """
    fields = "".join(
        f'[fields.f{k}]\nnumber = {k}\ntransform = "id"\n' for k in range(1, FIELDS + 1)
    )
    return parse_spec(
        f'[model]\nname = "bench"\n{model}[label]\npolicy = "window"\n{fields}', "bench.toml"
    )


def closed_examples(
    spec: ModelSpec, ids: npt.NDArray[np.uint64], labels: npt.NDArray[np.uint8]
) -> list[Examples]:
    """Return the stream in batches."""
    batches = []
    for begin in range(0, ids.shape[0], _BATCH):
        rows = slice(begin, begin + _BATCH)
        count = ids[rows].shape[0]
        times = _START_MS + np.arange(begin, begin + count, dtype=np.int64)
        absent = pa.nulls(count, pa.string())
        features = Encoded(
            np.ascontiguousarray(ids[rows]),
            np.zeros(0, np.uint64),
            np.zeros(1, np.int32),
            np.zeros((count, 0), np.float32),
        )
        batches.append(
            Examples(
                fingerprint=spec.fields.fingerprint,
                watermark_ms=int(times[-1]),
                kinds=np.full(count, Kind.CLOSED, np.uint8),
                labels=labels[rows],
                event_ms=times,
                shown_ms=times,
                append_ms=times,
                impression_ids=absent,
                request_ids=absent,
                features=features,
                slices={},
            )
        )
    return batches


def core_lr(examples: int, passes: int, seed: int = 1) -> dict[str, float]:
    """Return examples a second of the core, for new rows and for rows that are there."""
    random = np.random.default_rng(seed)
    spec = plain_spec()
    ids = zipf_ids(random, examples, exponent=1.1, values=2_500_000)
    labels = (random.random(examples) < 0.03).astype(np.uint8)
    batches = closed_examples(spec, ids, labels)
    _pass(spec, batches[:1], 1)  # compiled now, not while the clock runs
    first, *others, rows = _pass(spec, batches, 1 + passes)
    return {
        "core_lr": round(statistics.median(others)),
        "core_lr_new_rows": round(first),
        "core_lr_rows": rows,
    }


def core_lr_admission(examples: int, passes: int, seed: int = 2) -> dict[str, float]:
    """Return examples a second with and without admission, over the same new draws, in turns."""
    random = np.random.default_rng(seed)
    plain = plain_spec()
    admitting = parse_spec(
        plain.text + '[admission]\nkind = "count"\nsightings = 3\n', "bench.toml"
    )
    cores = {"core_lr_drawn": _Core(plain), "core_lr_admission": _Core(admitting)}
    rates: dict[str, list[float]] = {name: [] for name in cores}
    for _ in range(1 + passes):
        ids = zipf_ids(random, examples, exponent=1.1, values=2_500_000)
        labels = (random.random(examples) < 0.03).astype(np.uint8)
        batches = closed_examples(plain, ids, labels)
        for name, core in cores.items():
            core.learn(batches[:1])  # compiled now, not while the clock runs
            rates[name].append(core.learn(batches))
    results = {name: float(round(statistics.median(rates[name][1:]))) for name in cores}
    return results | {f"{name}_rows": len(core.view) for name, core in cores.items()}


def core_of(name: str, model: str, examples: int, seed: int = 1) -> dict[str, float]:
    """Return examples a second of another model's core, over rows that are there."""
    random = np.random.default_rng(seed)
    spec = plain_spec(model)
    ids = zipf_ids(random, examples, exponent=1.1, values=2_500_000)
    labels = (random.random(examples) < 0.03).astype(np.uint8)
    batches = closed_examples(spec, ids, labels)
    _pass(spec, batches[:1], 1)  # compiled now, not while the clock runs
    _, again, _ = _pass(spec, batches, 2)
    return {name: round(again)}


class _Core:
    """A model and its rows, as a learner holds them."""

    def __init__(self, spec: ModelSpec) -> None:
        self.model, self.view = open_model(spec, _BUCKETS), RowTable(spec.width)
        self.pending = Pending(self.view, Shape(spec.name, _BUCKETS, spec.width, "", ""))
        self.active = np.ones(_BUCKETS, np.bool_)

    def learn(self, batches: list[Examples]) -> float:
        """Learn a stream; return examples a second."""
        started = time.perf_counter()
        for batch in batches:
            self.view.reserve(self.model.rows_needed(batch))
            self.model.learn(self.view, self.pending.reserve(), self.active, batch)
        return sum(len(batch) for batch in batches) / (time.perf_counter() - started)


def _pass(spec: ModelSpec, batches: list[Examples], passes: int) -> list[float]:
    core = _Core(spec)
    return [*(core.learn(batches) for _ in range(passes)), len(core.view)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Speed of the learner.")
    parser.add_argument("--quick", action="store_true", help="400,000 examples, not 4,000,000")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    examples = 400_000 if chosen.quick else 4_000_000
    results = core_lr(examples, passes=3) | core_lr_admission(examples // 2, passes=3)
    results |= core_of("core_fm", FACTORIZATION_MACHINE, examples // 4)
    results |= core_of("core_deepfm", DEEPFM, examples // 10)
    if chosen.json:
        print(json.dumps(results))
    else:
        for name, value in results.items():
            print(f"{name:20s} {value:>12,.0f}")


if __name__ == "__main__":
    main()
