"""Compares a fit of a Parquet file with Vowpal Wabbit and torch, which read their own files.

    python -m tests.bench.fit [--quick] [--json]

All learn the stream of `tests.bench.learner` once: 26 ids and 13 numbers per example. `lr`, `fm`
and `deepfm` are fits of a Parquet file, from opening it to the last example; `snapshot_s` is the
time to write the snapshot. Vowpal Wabbit reads its own text file (logistic regression). A torch
loop reads the same Parquet file and learns mini-batches from a DataLoader, with Adagrad and the
same sizes: of 1,024, and those of headrace's DeepFM, 256 (`deepfm`) and 1,024 (`deepfm_1024`). It
stops after `torch_examples`. It runs with one thread and with one per core, and the faster run
counts: a second thread helps on an idle machine and spins on any other. In a quick run, this is
decided in the first round. `lr_store` is the fit with
`--store`: two processes learn into a Valkey of their own, from staging to the snapshot; its memory
is that of the process which starts them.

Every contender has its own process; if the run is quick, one process runs all but the torch loop,
which has another. All run in turns, `rounds` times; `lr_store` runs once if the run is quick.
Figures are medians. `to_vw_file` and `to_torch` are medians of the ratios of rates of one round, in
which the two contenders run one after the other. On a machine with other work, rates say little:
`processor_us` is the processor time per example. Threads that spin while they wait count in it.
`memory_mb` is the growth of each process at its peak. `load` is the load of the machine at the
begin and the end, `seconds` the time of the run, and `processor_s` the processor time of all its
processes.
"""

import functools
import math
import os
import resource
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from rich.console import Console

from headrace.deploy.local.services.valkey import ValkeyNode
from headrace.ingest.logs.layout import parse_layout
from headrace.learner.batch.fit_folder import FitFolder
from headrace.learner.batch.store_fit.staged_run import StageFolder
from headrace.learner.batch.store_fit.store_trainer import StoreFitSettings, StoreTrainer
from headrace.learner.batch.table_source import TableSource
from headrace.learner.batch.trainer import BatchTrainer, FitProgress, FitSettings
from headrace.learner.spec.model_spec import parse_spec
from headrace.pserver.redis_backend.redis_store import open_store
from headrace.runtime.affinity import available_cores
from tests.bench.batch.stream_table import write_table
from tests.bench.bench_options import bench_parser, print_figures
from tests.bench.learner.alone import Alone
from tests.bench.learner.stream import IDS, LR, NUMBERS, make_stream, stream_spec
from tests.bench.learner.vowpal_wabbit import learn_text, write_text
from tests.running_server import running_server

LAYOUT = '[event]\ntimestamp = "time"\n[click]\ncolumn = "clicked"\n'
FM = 'architecture = "factorization_machine"\ndimensions = 16\n'
DEEPFM = 'architecture = "deepfm"\ndimensions = 16\nlayers = [128, 64]\nmini_batch = {}\n'
MINI_BATCHES = {"lr": 1024, "fm": 1024, "deepfm": 256, "deepfm_1024": 1024}
"""By the name of the model, for the torch loops: headrace's DeepFM has the same."""
MODELS = {
    "lr": stream_spec(name="lr", more=LR).text,
    "fm": stream_spec(FM, name="fm", more=LR).text,
    "deepfm": stream_spec(DEEPFM.format(MINI_BATCHES["deepfm"]), name="deepfm", more=LR).text,
    "deepfm_1024": stream_spec(
        DEEPFM.format(MINI_BATCHES["deepfm_1024"]), name="deepfm_1024", more=LR
    ).text,
}
DATA = {"lr": "lr", "fm": "fm", "deepfm": "deepfm", "deepfm_1024": "deepfm"}
"""The size of its data."""
_faster: dict[tuple[str, int], list[int]] = {}
"""The number of threads with which a loop of torch was faster in this process."""
_ALL_PROCESSES = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN


class Size(NamedTuple):
    """Examples of each model, and rounds."""

    examples: dict[str, int]
    torch_examples: dict[str, int]
    """Fewer for the loops of torch, which learn a constant number of examples per second."""
    rounds: int
    store_rounds: int


QUICK = Size(
    {"lr": 100_000, "fm": 100_000, "deepfm": 100_000},
    {"lr": 20_000, "fm": 15_000, "deepfm": 10_000},
    rounds=2,
    store_rounds=1,
)
_EXAMPLES = {"lr": 2_000_000, "fm": 500_000, "deepfm": 200_000}
FULL = Size(_EXAMPLES, _EXAMPLES, rounds=3, store_rounds=3)


class Timing(NamedTuple):
    """The time of one contender."""

    rate: float
    """Examples/s."""
    processor_us: float = math.nan
    """Processor time per example; NaN if other processes did the work."""
    snapshot_s: float = math.nan


class Clock:
    """Measures wall clock and processor time from its creation on."""

    def __init__(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def timing(self, examples: int) -> Timing:
        """Return the time of learning these examples until now."""
        wall_s = time.perf_counter() - self._began[0]
        processor_s = time.process_time() - self._began[1]
        return Timing(examples / wall_s, processor_s / examples * 1e6)


@functools.cache
def warm(text: str, path: str) -> None:
    """Learn one block, once per process, so that no kernel is loaded or compiled in the race."""
    spec, layout = parse_spec(text, "bench.toml"), parse_layout(LAYOUT, "layout.toml")
    stop = threading.Event()
    stop.set()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        source, kept = TableSource([path], layout, spec), FitFolder(folder, spec.name)
        BatchTrainer(spec, source, kept, FitSettings()).run(stop, lambda _: None)


def fit(text: str, path: str) -> Timing:
    """Time a fit."""
    warm(text, path)
    spec, layout = parse_spec(text, "bench.toml"), parse_layout(LAYOUT, "layout.toml")
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        source, kept = TableSource([path], layout, spec), FitFolder(folder, spec.name)
        trainer = BatchTrainer(spec, source, kept, FitSettings())
        learned, learned_at = Timing(math.nan), 0.0

        def tell(progress: FitProgress) -> None:
            nonlocal learned, learned_at
            if not progress.examples:  # the first progress is that before anything is learned
                return
            learned, learned_at = clock.timing(progress.examples), time.perf_counter()

        clock = Clock()
        trainer.run(threading.Event(), tell)
        return learned._replace(snapshot_s=time.perf_counter() - learned_at)


def fit_into_store(text: str, path: str, url: str) -> Timing:
    """Time a fit by two processes, from the first row read to the snapshot."""
    spec, layout = parse_spec(text, "bench.toml"), parse_layout(LAYOUT, "layout.toml")
    connect = functools.partial(open_store, url)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as to:
        folders = FitFolder(to, spec.name), StageFolder(to, spec.name)
        settings = StoreFitSettings(workers=2, rows_a_file=50_000)
        source = TableSource([path], layout, spec)
        trainer = StoreTrainer(spec, source, folders, connect, settings)
        began = time.perf_counter()
        done = trainer.run(threading.Event(), lambda _: None)
        ended = time.perf_counter()
    assert done is not None
    return Timing(done.examples / (ended - began))


def learn_vowpal_wabbit(path: str, examples: int, indexes: int) -> Timing:
    """Time Vowpal Wabbit on a text file."""
    clock = Clock()
    learn_text(Path(path), indexes)
    return clock.timing(examples)


def learn_torch(name: str, path: str, sizes: list[int], most: int, mini_batch: int) -> Timing:
    """Time a DataLoader loop with one thread and with all cores; return the faster run.

    A process that times it again takes the number of threads that was faster.
    """
    import torch

    found = {}
    for threads in _faster.get((name, mini_batch), sorted({1, available_cores()})):
        torch.set_num_threads(threads)
        found[threads] = learn_torch_once(name, path, sizes, most, mini_batch)
    torch.set_num_threads(1)  # as each of headrace's models sets it
    best = max(found, key=lambda each: found[each].rate)
    _faster[name, mini_batch] = [best]
    return found[best]


def learn_torch_once(name: str, path: str, sizes: list[int], most: int, mini_batch: int) -> Timing:
    """Time a DataLoader loop over the first rows of the Parquet file."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]
    first = torch.from_numpy(np.concatenate(([0], np.cumsum(np.array(sizes) + 1)[:-1])))
    rows = int(np.sum(np.array(sizes) + 1))
    dimensions = 0 if name == "lr" else 16
    weights = nn.EmbeddingBag(rows, 1, mode="sum", sparse=True)
    nn.init.zeros_(weights.weight)
    vectors = None
    if dimensions:
        drawn = torch.empty(rows, dimensions).uniform_(-0.01, 0.01)
        vectors = nn.Embedding(rows, dimensions, sparse=True, _weight=drawn)
    slopes = nn.Parameter(torch.zeros(NUMBERS, 1 + dimensions))
    dense: list[Any] = [slopes]
    deep = None
    if name == "deepfm":
        inputs = (IDS + NUMBERS) * dimensions
        deep = nn.Sequential(
            *(nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU()), nn.Linear(64, 1)
        )
        dense += list(deep.parameters())
    sparse = [weights.weight, *([] if vectors is None else [vectors.weight])]
    optimizer = torch.optim.Adagrad([*sparse, *dense], lr=0.05)
    loss = nn.BCEWithLogitsLoss()
    clock = Clock()
    table = pq.read_table(path).slice(0, most)
    ids = np.column_stack([table[f"f{k + 1}"].to_numpy() for k in range(IDS)])
    numbers = np.column_stack([table[f"f{IDS + 1 + k}"].to_numpy() for k in range(NUMBERS)])
    labels = table["clicked"].to_numpy().astype(np.float32)
    data = TensorDataset(torch.from_numpy(ids) + first, torch.from_numpy(numbers),
                         torch.from_numpy(labels))  # fmt: skip
    for batch, values, label in DataLoader(data, batch_size=mini_batch):
        log_odds = weights(batch).squeeze(1) + values @ slopes[:, 0]
        if vectors is not None:
            scaled = values.unsqueeze(2) * slopes[:, 1:]
            found = torch.cat((vectors(batch), scaled), 1)
            whole = found.sum(1)
            log_odds = log_odds + 0.5 * (whole * whole - (found * found).sum(1)).sum(1)
            if deep is not None:
                log_odds = log_odds + deep(found.flatten(1)).squeeze(1)
        optimizer.zero_grad()
        loss(log_odds, label).backward()
        optimizer.step()
    return clock.timing(len(data))


class Race:
    """The contenders of all rounds, with their times."""

    def __init__(self, alone: Alone, rival: Alone, told: Console) -> None:
        """rival: runs torch's loop. A fit sets how torch's threads wait, in its own process."""
        self._alone, self._rival, self._told = alone, rival, told
        self.found: dict[str, list[Timing]] = {}
        self.memory_mb: dict[str, float] = {}

    def run(self, name: str, function: Callable[..., Timing], *arguments: Any) -> None:
        """Run a contender once."""
        alone = self._rival if function is learn_torch else self._alone
        timing, grown = alone.run(function, *arguments)
        self.found.setdefault(name, []).append(timing)
        self.memory_mb[name] = max(grown, self.memory_mb.get(name, 0.0))
        self._told.print(
            f"{name}: {timing.rate:,.0f} examples/s, {timing.processor_us:.1f} us of processor"
        )

    def ratio(self, ours: str, theirs: str) -> float:
        """Return how many times as fast one contender is as another: the median of the rounds."""
        pairs = zip(self.found[ours], self.found[theirs], strict=True)
        return round(statistics.median(mine.rate / other.rate for mine, other in pairs), 2)


def measure(size: Size, *, quick: bool, told: Console) -> dict[str, Any]:
    """Return the figures."""
    began, loads = time.perf_counter(), [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        stream = make_stream(max(size.examples.values()), 1)
        paths = {name: str(Path(folder, f"{name}.parquet")) for name in size.examples}
        for name, examples in size.examples.items():
            write_table(stream, Path(paths[name]), 0, examples)
        text = str(write_text(stream.first(size.examples["lr"]), Path(folder)))
        node = ValkeyNode(Path(folder, "valkey"))
        with running_server(node), Alone(quick=quick) as alone, Alone(quick=quick) as rival:
            race = Race(alone, rival, told)
            for number in range(size.rounds):
                for name, spec in MODELS.items():
                    kind = DATA[name]
                    path, most = paths[kind], size.torch_examples[kind]
                    size_of_fields, mini_batch = stream.values.tolist(), MINI_BATCHES[name]
                    torch_arguments = kind, path, size_of_fields, most, mini_batch
                    race.run(f"torch_{name}", learn_torch, *torch_arguments)
                    race.run(name, fit, spec, path)
                    if name == "lr":
                        examples, indexes = size.examples[name], stream.all_indexes
                        race.run("vw_file", learn_vowpal_wabbit, text, examples, indexes)
                if number < size.store_rounds:
                    race.run("lr_store", fit_into_store, MODELS["lr"], paths["lr"], node.url)
    loads.append(os.getloadavg()[0])
    middle = {
        name: Timing(*(statistics.median(column) for column in zip(*runs, strict=True)))
        for name, runs in race.found.items()
    }
    return {
        "rows_per_second": {name: round(each.rate) for name, each in middle.items()},
        "to_vw_file": race.ratio("lr", "vw_file"),
        "to_torch": {name: race.ratio(name, f"torch_{name}") for name in MODELS},
        "memory_mb": {name: round(grown) for name, grown in race.memory_mb.items()},
        "processor_us": {
            name: round(each.processor_us, 2)
            for name, each in middle.items()
            if not math.isnan(each.processor_us)
        },
        "snapshot_s": round(middle["lr"].snapshot_s, 2),
        "examples": size.examples,
        "torch_examples": size.torch_examples,
        "rounds": size.rounds,
        "load": [round(each, 1) for each in loads],
        "seconds": round(time.perf_counter() - began),
        "processor_s": round(sum(sum(resource.getrusage(kind)[:2]) for kind in _ALL_PROCESSES)),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = bench_parser("fit", __doc__)
    chosen = parser.parse_args(arguments)
    told = Console(stderr=chosen.json)
    found = measure(QUICK if chosen.quick else FULL, quick=chosen.quick, told=told)
    print_figures(found, as_json=chosen.json)


if __name__ == "__main__":
    main()
