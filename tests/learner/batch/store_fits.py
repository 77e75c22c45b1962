"""Fits of a shop's log into a parameter server, for tests: in memory, and as commands."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.ingest.logs.layout import parse_layout
from headrace.learner.batch.fit_folder import FitFolder
from headrace.learner.batch.store_fit.partition_tasks import LearnTask
from headrace.learner.batch.store_fit.staged_run import StageFolder
from headrace.learner.batch.store_fit.store_trainer import StoreFitSettings, StoreTrainer, Worker
from headrace.learner.batch.table_source import TableSource
from headrace.learner.batch.trainer import FitSummary
from headrace.learner.local.in_memory_model import InMemoryModel
from headrace.learner.spec.model_spec import ModelSpec
from headrace.pserver.store import Store
from tests.learner.batch.staged_files import counters, run_here
from tests.learner.shop import CROSS, shop_spec

LAYOUT = '[event]\ntimestamp = "timestamp_ms"\n[click]\ncolumn = "clicked"\n'
ROWS, SPEC = 60_000, shop_spec(CROSS)
_ROOT = Path(__file__).parents[3]


def source(log: Path, spec: ModelSpec = SPEC) -> TableSource:
    """Return the log as the source of a fit."""
    return TableSource([str(log)], parse_layout(LAYOUT, "layout"), spec)


def trainer(
    log: Path,
    to: Path,
    connect: Callable[[str], Store],
    start: Callable[[LearnTask, Sequence[int]], Worker] = run_here,
    spec: ModelSpec = SPEC,
    **settings: float,
) -> StoreTrainer:
    """Return a fit of the log, with two workers and small files."""
    folders = FitFolder(str(to), "shop"), StageFolder(str(to), "shop")
    chosen = StoreFitSettings(**{"rows_a_file": 17_000, "workers": 2, **settings})  # type: ignore[arg-type]
    return StoreTrainer(spec, source(log, spec), folders, connect, chosen, start)


def run(fit: StoreTrainer) -> FitSummary | None:
    """Run a fit to its end."""
    return fit.run(threading.Event(), lambda _: None)


def counted(to: Path, name: str) -> dict[int, tuple[int, int]]:
    """Return the shows and clicks of each row of a snapshot."""
    return counters(InMemoryModel.load(to, name).rows)


def fit_command(log: Path, to: Path, url: str, *more: str) -> subprocess.Popen[str]:
    """Start `headrace fit --store` in a folder, with two workers."""
    (to / "shop.toml").write_text(SPEC.text)
    (to / "layout.toml").write_text(LAYOUT)
    command = [
        *(sys.executable, "-m", "headrace", "fit", "--model", "shop.toml", "--data", str(log)),
        *("--layout", "layout.toml", "--to", "models", "--store", url, "--workers", "2", *more),
    ]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    return subprocess.Popen(command, cwd=to, env=environment, stdout=subprocess.PIPE, text=True)


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    """Wait until a process has written a file, or has ended."""
    while not path.exists() and process.poll() is None:
        threading.Event().wait(0.02)
