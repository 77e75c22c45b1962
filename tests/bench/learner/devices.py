"""Measures networks on the CPU and on a GPU, by mini-batch, with rows and layers apart.

    python -m tests.bench.devices [--quick] [--json]

The stream of `tests.bench.learner`, each example with a bag of 20 items beside its 26 ids and 13
numbers, is learned by DCN-V2 and by the sequence model (a GRU over the bag), with layers of two
sizes and mini-batches of 1,024 to 65,536 examples. `layers_ms` is the time of the forward and
backward pass of a mini-batch, copies to and from the device included; `rows_ms` is the rest:
finding and gathering rows, summing gradients by row, steps of the optimizers. `largest_difference`
compares the scores of both devices after the same examples, each scored before it is learned.

Without a CUDA device, only the CPU is measured. The CPU gets no mini-batches above 16,384: its time
for an example is the same there.
"""

import dataclasses
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headrace.ingest.examples.batch import Examples
from headrace.ingest.features.hashing import field_ids
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from tests.bench.bench_options import bench_parser, print_figures
from tests.bench.learner.core import Core
from tests.bench.learner.stream import IDS, LR, NUMBERS, Stream, batches_of, make_stream

_BAG = IDS + NUMBERS + 1
_ITEMS = 20
_SIZES = {"small": "[64, 32]", "wide": "[1024, 512, 256]"}
_NETWORKS = {
    "dcn_v2": 'architecture = "dcn_v2"\ncross_layers = 3\n',
    "sequence": f'architecture = "sequence"\nhistory = "recent"\ntarget = "f{IDS}"\n'
    f"history_length = {_ITEMS}\n",
}
_OPTIMIZERS = (
    '[optimizer.embeddings]\nname = "adagrad"\nalpha = 0.05\n'
    '[optimizer.dense]\nname = "adagrad"\nalpha = 0.005\n'
)
_MINI_BATCHES, _QUICK_MINI_BATCHES = (1024, 4096, 16_384, 65_536), (1024,)
_BATCHES = 6
_MOST_ON_CPU = 16_384


def spec_of(network: str, layers: str, mini_batch: int, device: str) -> ModelSpec:
    """Return a network over the stream with bags."""
    fields = [f'f{k} = {{ number = {k}, transform = "id" }}' for k in range(1, IDS + 1)]
    numbers = range(IDS + 1, IDS + NUMBERS + 1)
    fields += [f'f{k} = {{ number = {k}, transform = "number" }}' for k in numbers]
    fields += [f'recent = {{ number = {_BAG}, transform = "bag" }}']
    model = f'name = "bench"\n{_NETWORKS[network]}dimensions = 16\nlayers = {layers}\n'
    model += f'mini_batch = {mini_batch}\ndevice = "{device}"\n'
    text = f"[model]\n{model}[fields]\n" + "\n".join(fields) + f"\n{LR}{_OPTIMIZERS}"
    return parse_spec(text, "bench.toml")


def with_bags(batches: list[Examples], seed: int) -> list[Examples]:
    """Return the batches with a bag of `_ITEMS` items in each example."""
    random, found = np.random.default_rng(seed), []
    for batch in batches:
        items = random.zipf(1.3, len(batch) * _ITEMS).astype(np.uint64) % np.uint64(100_000)
        offsets = np.arange(len(batch) + 1, dtype=np.int32) * _ITEMS
        features = dataclasses.replace(
            batch.features, bag_ids=field_ids(items, _BAG), bag_offsets=offsets
        )
        found.append(dataclasses.replace(batch, features=features))
    return found


class _Timed:
    """The passes of a model, with the seconds that they took."""

    def __init__(self, passes: Any) -> None:
        self._passes, self.seconds = passes, 0.0
        self.own = passes.own

    def forward(self, share: Any) -> Any:
        began = time.perf_counter()
        found = self._passes.forward(share)
        self.seconds += time.perf_counter() - began
        return found

    def backward(self, slope: Any) -> Any:
        began = time.perf_counter()
        found = self._passes.backward(slope)
        self.seconds += time.perf_counter() - began
        return found


def measure(
    spec: ModelSpec, batches: Sequence[Examples]
) -> tuple[dict[str, float], npt.NDArray[np.float64]]:
    """Return milliseconds a batch after the first three, and the scores of all."""
    core = Core(spec)
    scores, whole, layers = [], [], []
    passes: Any = None
    for batch in batches:
        before = passes.seconds if passes else 0.0
        began = time.perf_counter()
        learned = core.learn([batch])
        whole.append(time.perf_counter() - began)
        assert learned.scores is not None
        scores.append(learned.scores)
        if passes is None:
            model: Any = core.model
            passes = _Timed(model._of_learner())
            model._learning = passes
        layers.append(passes.seconds - before)
    # the first batches compile kernels, choose algorithms and add most of the rows
    begun = min(3, len(batches) - 1)
    all_ms, layers_ms = (1000 * statistics.median(each[begun:]) for each in (whole, layers))
    figures = {
        "examples_per_second": round(1000 * len(batches[0]) / all_ms),
        "rows_ms": round(all_ms - layers_ms, 2),
        "layers_ms": round(layers_ms, 2),
    }
    return figures, np.concatenate(scores)


def run(stream: Stream, mini_batches: Sequence[int], sizes: Sequence[str]) -> list[dict[str, Any]]:
    """Measure every network, size and mini-batch on every device."""
    devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    found: list[dict[str, Any]] = []
    for network in _NETWORKS:
        for size in sizes:
            for mini_batch in mini_batches:
                specs = {d: spec_of(network, _SIZES[size], mini_batch, d) for d in devices}
                first = stream.first(_BATCHES * mini_batch)
                batches = with_bags(batches_of(specs["cpu"], first, mini_batch), 7)
                if mini_batch > _MOST_ON_CPU:
                    del specs["cpu"]
                expected = None
                for device, spec in specs.items():
                    figures, scores = measure(spec, batches)
                    expected = scores if device == "cpu" else expected
                    apart = None if expected is None else float(np.abs(scores - expected).max())
                    named = {"network": network, "layers": size, "mini_batch": mini_batch}
                    found.append(
                        named | {"device": device} | figures | {"largest_difference": apart}
                    )
    return found


def main() -> None:
    """Run and print."""
    parser = bench_parser("devices", __doc__, "small layers, mini-batches of 1,024")
    asked = parser.parse_args()
    mini_batches = _QUICK_MINI_BATCHES if asked.quick else _MINI_BATCHES
    sizes = ("small",) if asked.quick else tuple(_SIZES)
    points = run(make_stream(_BATCHES * mini_batches[-1], seed=1), mini_batches, sizes)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    found = {"gpu": gpu, "torch": torch.__version__, "points": points}
    print_figures(found, as_json=asked.json)


if __name__ == "__main__":
    main()
