"""Compares a fit of a Parquet file with Vowpal Wabbit and torch, which read their own files.

    python -m tests.bench.fit [--quick] [--json]

All learn the stream of `tests.bench.learner` once: 26 ids and 13 numbers per example. `lr`, `fm`
and `deepfm` are fits of a Parquet file, from opening it to the last example; `snapshot_s` is the
time to write the snapshot. Vowpal Wabbit reads its own text file (logistic regression). A torch
loop reads the same Parquet file and learns mini-batches of 1,024 from a DataLoader, with Adagrad
and the same sizes. `lr_store` is the fit with `--store`: two processes learn into a Valkey of their
own, from staging to the snapshot; its memory is that of the process which starts them. `to_vw_file`
and `to_torch` are ratios of rates; `memory_mb` is the growth of each process at its peak. Every
contender has its own process, and all run in turns, `rounds` times. Figures are medians.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from headrace.deploy.local.services.valkey import ValkeyNode
from headrace.ingest.logs import parse_layout
from headrace.learner.batch import (
    BatchTrainer,
    FitFolder,
    FitSettings,
    StageFolder,
    StoreFitSettings,
    StoreTrainer,
    TableSource,
)
from headrace.learner.spec import parse_spec
from headrace.pserver.redis_backend import open_store
from tests.bench.batch.stream_table import write_table
from tests.bench.learner.alone import Alone
from tests.bench.learner.stream import IDS, LR, NUMBERS, make_stream, stream_spec
from tests.bench.learner.vowpal_wabbit import learn_file
from tests.running_server import running_server

if TYPE_CHECKING:
    from collections.abc import Sequence

LAYOUT = '[event]\ntimestamp = "time"\n[click]\ncolumn = "clicked"\n'
FM = 'architecture = "factorization_machine"\ndimensions = 16\n'
DEEPFM = 'architecture = "deepfm"\ndimensions = 16\nlayers = [128, 64]\nmini_batch = 256\n'
MODELS = {
    "lr": stream_spec(name="lr", more=LR).text,
    "fm": stream_spec(FM, name="fm", more=LR).text,
    "deepfm": stream_spec(DEEPFM, name="deepfm", more=LR).text,
}
MINI_BATCH = 1024


class Size(NamedTuple):
    """Examples of each contender, and rounds."""

    lr: int
    fm: int
    deepfm: int
    rounds: int


QUICK, FULL = Size(200_000, 60_000, 20_000, 1), Size(2_000_000, 500_000, 200_000, 3)


def fit(text: str, path: str) -> tuple[float, float]:
    """Return examples/s of a fit, and seconds of writing its snapshot."""
    spec, layout = parse_spec(text, "bench.toml"), parse_layout(LAYOUT, "layout.toml")
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        warm = BatchTrainer(
            spec, TableSource([path], layout, spec), FitFolder(folder, spec.name), FitSettings()
        )
        stop = threading.Event()
        stop.set()
        warm.run(stop, lambda _: None)  # one block: kernels are compiled now, not in the race
        kept = FitFolder(folder, spec.name)
        kept.restart()
        trainer = BatchTrainer(spec, TableSource([path], layout, spec), kept, FitSettings())
        learned_at = time.perf_counter()

        def tell(progress: Any) -> None:
            nonlocal learned_at
            learned_at = time.perf_counter()

        began = time.perf_counter()
        done = trainer.run(threading.Event(), tell)
        ended = time.perf_counter()
    assert done is not None
    return done.examples / (learned_at - began), ended - learned_at


def fit_into_store(text: str, path: str, url: str) -> float:
    """Return examples/s of a fit by two processes, from the first row read to the snapshot."""
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
    return done.examples / (ended - began)


def learn_vowpal_wabbit(examples: int) -> float:
    """Return examples/s of reading a text file, written off the clock."""
    return learn_file(make_stream(examples, 1)).rate


def learn_torch(name: str, path: str, sizes: list[int]) -> float:
    """Return examples/s of a DataLoader loop over the Parquet file."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]
    first = torch.from_numpy(np.concatenate(([0], np.cumsum(np.array(sizes) + 1)[:-1])))
    rows = int(np.sum(np.array(sizes) + 1))
    dimensions = 0 if name == "lr" else 16
    weights = nn.EmbeddingBag(rows, 1, mode="sum", sparse=True)
    nn.init.zeros_(weights.weight)
    vectors = nn.Embedding(rows, dimensions, sparse=True) if dimensions else None
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
    began = time.perf_counter()
    table = pq.read_table(path)
    ids = np.column_stack([table[f"f{k + 1}"].to_numpy() for k in range(IDS)])
    numbers = np.column_stack([table[f"f{IDS + 1 + k}"].to_numpy() for k in range(NUMBERS)])
    labels = table["clicked"].to_numpy().astype(np.float32)
    data = TensorDataset(torch.from_numpy(ids) + first, torch.from_numpy(numbers),
                         torch.from_numpy(labels))  # fmt: skip
    for batch, values, label in DataLoader(data, batch_size=MINI_BATCH):
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
    return len(data) / (time.perf_counter() - began)


def measure(size: Size, *, quick: bool, told: Console) -> dict[str, Any]:
    """Return the figures."""
    rates: dict[str, list[float]] = {}
    memory: dict[str, float] = {}
    snapshots: list[float] = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        paths = {}
        for name, examples in zip(MODELS, size[:3], strict=True):
            stream = make_stream(examples, 1)
            paths[name] = str(Path(folder, f"{name}.parquet"))
            write_table(stream, Path(paths[name]))
        node = ValkeyNode(Path(folder, "valkey"))
        with running_server(node), Alone(quick=quick) as alone:
            for _ in range(size.rounds):
                for name, text in MODELS.items():
                    (rate, snapshot_s), grown = alone.run(fit, text, paths[name])
                    rates.setdefault(name, []).append(rate)
                    memory[name] = grown
                    snapshots += [snapshot_s] if name == "lr" else []
                    told.print(f"fit {name}: {rate:,.0f} examples/s")
                    other, grown = alone.run(learn_torch, name, paths[name], stream.values.tolist())
                    rates.setdefault(f"torch_{name}", []).append(other)
                    memory[f"torch_{name}"] = grown
                    told.print(f"torch {name}: {other:,.0f} examples/s")
                other, memory["lr_store"] = alone.run(
                    fit_into_store, MODELS["lr"], paths["lr"], node.url
                )
                rates.setdefault("lr_store", []).append(other)
                told.print(f"fit lr, --store, two processes: {other:,.0f} examples/s")
                other, memory["vw_file"] = alone.run(learn_vowpal_wabbit, size.lr)
                rates.setdefault("vw_file", []).append(other)
                told.print(f"Vowpal Wabbit, file: {other:,.0f} examples/s")
    middle = {name: statistics.median(found) for name, found in rates.items()}
    return {
        "rows_per_second": {name: round(rate) for name, rate in middle.items()},
        "to_vw_file": round(middle["lr"] / middle["vw_file"], 2),
        "to_torch": {name: round(middle[name] / middle[f"torch_{name}"], 2) for name in MODELS},
        "memory_mb": {name: round(grown) for name, grown in memory.items()},
        "snapshot_s": round(statistics.median(snapshots), 2),
        "examples": dict(zip(MODELS, size[:3], strict=True)),
        "rounds": size.rounds,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.fit",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="within a minute")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    chosen = parser.parse_args(arguments)
    told = Console(stderr=chosen.json)
    found = measure(QUICK if chosen.quick else FULL, quick=chosen.quick, told=told)
    if chosen.json:
        print(json.dumps(found))
        return
    table = Table("contender", "rows/s", "MB", box=None)
    for name, rate in found["rows_per_second"].items():
        table.add_row(name, f"{rate:,}", f"{found['memory_mb'][name]:,}")
    told.print(table)
    told.print(f"to Vowpal Wabbit's file {found['to_vw_file']}, to torch {found['to_torch']}")


if __name__ == "__main__":
    main()
