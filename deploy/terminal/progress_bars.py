"""Progress bars of commands that take minutes."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from headrace.counted_nouns import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console
    from rich.progress import TaskID

    from headrace.learner.batch import FitProgress
    from headrace.learner.experiments import ExperimentProgress
    from headrace.learner.recovery import RebuildProgress
    from headrace.pserver.snapshots import SnapshotProgress as Buckets

log = logging.getLogger(__name__)

_LOG_EVERY_S = 10.0


class StepView:
    """Progress bars, one for each step. Prints nothing if there is no terminal."""

    def __init__(self, console: Console) -> None:
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[detail]}"),
            TimeRemainingColumn(),
            console=console,
            # a progress bar in the log of a job is noise
            disable=not console.is_terminal,
        )

    def buckets(self, doing: str) -> Callable[[Buckets], None]:
        """Return the progress callback of work on buckets."""
        rated = self._rated(doing)

        def tell(now: Buckets) -> None:
            rows, size_mb = counted(now.rows, "row"), now.size_bytes / 1e6
            detail = f"buckets, {rows}, {size_mb:,.1f} MB, {{rate:,.0f}} rows/s"
            rated(now.done, now.of, now.rows, detail)

        return tell

    def replay(self, doing: str) -> Callable[[RebuildProgress], None]:
        """Return the progress callback of a replay of examples."""
        rated = self._rated(doing)

        def tell(now: RebuildProgress) -> None:
            detail = f"batches, {counted(now.examples, 'example')}, {{rate:,.0f}} examples/s"
            rated(now.batches, now.of, now.examples, detail)

        return tell

    def fit(self, doing: str, epochs: int) -> Callable[[FitProgress], None]:
        """Return the progress callback of a fit; without a terminal it logs every ten seconds."""
        rated = self._rated(doing)
        begun_s = log_at_s = time.monotonic()
        had: int | None = None

        def tell(now: FitProgress) -> None:
            nonlocal log_at_s, had
            had = now.examples if had is None else had
            epoch = f"epoch {(now.epoch or 0) + 1} of {epochs}, " if epochs > 1 else ""
            part = "held-out tail, " if now.epoch is None else epoch
            detail = f"% {part}{counted(now.examples, 'example')}, {{rate:,.0f}}/s"
            if now.normalized_entropy == now.normalized_entropy:
                detail += f", normalized entropy {now.normalized_entropy:.4f}"
            rated(int(100 * now.read), 100, now.examples - had, detail)
            if self._bars.disable and time.monotonic() >= log_at_s:
                log_at_s = time.monotonic() + _LOG_EVERY_S
                rate = (now.examples - had) / max(time.monotonic() - begun_s, 1e-9)
                log.info("%s: %d %s", doing, int(100 * now.read), detail.format(rate=rate))

        return tell

    def experiment(self, name: str) -> Callable[[ExperimentProgress], None]:
        """Return the progress callback of an experiment."""
        rated = self._rated(f"experiment {name}")
        had: int | None = None

        def tell(now: ExperimentProgress) -> None:
            nonlocal had
            had = now.steps if had is None else had
            detail = f"% {now.learning} of {now.arms} arms, {{rate:,.0f}} examples/s of all arms"
            rated(int(100 * now.read), 100, now.steps - had, detail)

        return tell

    def importance(self, name: str) -> Callable[[float, int], None]:
        """Return the progress callback of a measurement of what inputs are worth."""
        rated = self._rated(f"importance of {name}")

        def tell(read: float, steps: int) -> None:
            rated(int(100 * read), 100, steps, "% {rate:,.0f} examples/s of all models")

        return tell

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def _rated(self, doing: str) -> Callable[[int, int, int, str], None]:
        """Return the function that updates a bar. Bar and rate start with the first update."""
        task: TaskID | None = None
        begun_s = 0.0

        def update(done: int, of: int, counted: int, detail: str) -> None:
            nonlocal task, begun_s
            if task is None:
                begun_s = time.monotonic()
                task = self._bars.add_task(doing, total=of, detail="")
            passed_s = time.monotonic() - begun_s
            rate = counted / passed_s if passed_s > 0 else 0.0
            self._bars.update(task, completed=done, total=of, detail=detail.format(rate=rate))

        return update
