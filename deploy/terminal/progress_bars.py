"""Progress bars of commands that take minutes."""

import logging
import math
import time
from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from headrace.learner.batch.trainer import FitProgress
from headrace.learner.experiments.history import ExperimentProgress
from headrace.learner.recovery.rebuilder import RebuildProgress
from headrace.pserver.snapshots.writer import SnapshotProgress as Buckets
from headrace.runtime.counted_nouns import counted

log = logging.getLogger(__name__)

_LOG_EVERY_S = 10.0


class ShownRate:
    """The rate of a count, from the begin of the work.

    Once the count has grown twice, the time until it first grew has no part in the rate, because
    kernels compile in it.
    """

    def __init__(self, clock_s: Callable[[], float], count: int = 0) -> None:
        """count: what was done before the work began."""
        self._clock_s = clock_s
        self._begun = clock_s(), count
        self._grown: tuple[float, int] | None = None

    def text(self, count: int, unit: str) -> str:
        """Return the rate, to append to a text; empty while it is unknown."""
        now_s = self._clock_s()
        if self._grown is None and count > self._begun[1]:
            self._grown = now_s, count
        begun_s, had = self._begun
        if self._grown is not None and count > self._grown[1]:
            begun_s, had = self._grown
        if count <= had or now_s <= begun_s:
            return ""
        return f", {(count - had) / (now_s - begun_s):,.0f} {unit}"


class StepView:
    """Progress bars, one for each step. Without a terminal, it logs every ten seconds instead."""

    def __init__(
        self, console: Console | None = None, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        """console: None: standard error."""
        console = console or Console(stderr=True)
        self._clock_s = clock_s
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[detail]}"),
            TimeRemainingColumn(),
            console=console,
            # a bar in the log of a job is noise
            disable=not console.is_terminal,
        )

    def buckets(self, doing: str) -> Callable[[Buckets], None]:
        """Return the progress callback of work on buckets."""
        update, rate = self._bar(doing), ShownRate(self._clock_s)

        def tell(now: Buckets) -> None:
            rows, size_mb = counted(now.rows, "row"), now.size_bytes / 1e6
            detail = f"buckets, {rows}, {size_mb:,.1f} MB{rate.text(now.rows, 'rows/s')}"
            update(now.done, now.of, detail)

        return tell

    def replay(self, doing: str) -> Callable[[RebuildProgress], None]:
        """Return the progress callback of a replay of examples."""
        update, rate = self._bar(doing), ShownRate(self._clock_s)

        def tell(now: RebuildProgress) -> None:
            examples = counted(now.examples, "example")
            detail = f"batches, {examples}{rate.text(now.examples, 'examples/s')}"
            update(now.batches, now.of, detail)

        return tell

    def fit(self, doing: str, epochs: int) -> Callable[[FitProgress], None]:
        """Return the progress callback of a fit.

        The first progress is that before anything is learned. An earlier process may have learned
        a part.
        """
        update = self._bar(doing)
        rate: ShownRate | None = None

        def tell(now: FitProgress) -> None:
            nonlocal rate
            if now.staging:
                detail = "% of the examples staged"
            else:
                rate = rate or ShownRate(self._clock_s, now.examples)
                epoch = f"epoch {(now.epoch or 0) + 1} of {epochs}, " if epochs > 1 else ""
                part = "held-out tail, " if now.epoch is None else epoch
                detail = f"% {part}{counted(now.examples, 'example')}"
                detail += rate.text(now.examples, "examples/s")
                if not math.isnan(now.normalized_entropy):
                    detail += f", normalized entropy {now.normalized_entropy:.4f}"
            update(int(100 * now.read), 100, detail)

        return tell

    def experiment(self, name: str) -> Callable[[ExperimentProgress], None]:
        """Return the progress callback of an experiment."""
        update = self._bar(f"experiment {name}")
        rate: ShownRate | None = None

        def tell(now: ExperimentProgress) -> None:
            nonlocal rate
            rate = rate or ShownRate(self._clock_s, now.steps)
            speed = rate.text(now.steps, "examples/s of all arms")
            update(int(100 * now.read), 100, f"% {now.learning} of {now.arms} arms{speed}")

        return tell

    def search(self, name: str) -> Callable[[float, str], None]:
        """Return the progress callback of the search of a spec."""
        update = self._bar(f"searching a spec for {name}")

        def tell(share: float, trying: str) -> None:
            update(int(100 * share), 100, f"% {trying}")

        return tell

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def _bar(self, doing: str) -> Callable[[int, int, str], None]:
        """Return the function that updates a bar. The bar appears with the first update."""
        task: TaskID | None = None
        log_at_s = self._clock_s() + _LOG_EVERY_S

        def update(done: int, of: int, detail: str) -> None:
            nonlocal task, log_at_s
            if self._bars.disable and self._clock_s() >= log_at_s:
                log_at_s = self._clock_s() + _LOG_EVERY_S
                log.info("%s: %s %s", doing, done if detail[0] == "%" else f"{done}/{of}", detail)
            if task is None:
                task = self._bars.add_task(doing, total=of, detail="")
            self._bars.update(task, completed=done, total=of, detail=detail)

        return update
