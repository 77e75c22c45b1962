"""Shows the progress of a start: a line for each step, a clock for long ones, a bar for jars.

On a terminal, the clock of a long step runs below its line. In a log or a CI job nothing can be
overwritten, so a step that takes longer prints a line every ten seconds.
"""

import time
from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)

_LINE_EVERY_S = 10.0


class SetupProgress:
    """Prints every step of a start on a console."""

    def __init__(
        self, console: Console | None = None, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        """console: None shows nothing."""
        console = console or Console(quiet=True)
        self._console, self._clock_s = console, clock_s
        self._begun_s = self._printed_s = clock_s()
        self._bar = Progress(
            TextColumn("fetching the jars of Kafka, once"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("jars", visible=False)
        self._clock: Progress | None = None

    def step(self, what: str, *, long: bool = False) -> None:
        """Print a line; on a terminal, count the seconds below it.

        long: the step takes seconds, until the next step.
        """
        self._end_clock()
        self._begun_s = self._printed_s = self._clock_s()
        self._console.print(what, highlight=False, soft_wrap=True)
        if long and self._console.is_terminal:
            columns = SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
            self._clock = Progress(*columns, console=self._console, transient=True)
            self._clock.add_task("")
            self._clock.start()

    def at_work(self, how_far: str) -> None:
        """Show how far the present long step has come, such as "12 functions compiled".

        Without a terminal, print it every ten seconds.
        """
        if self._clock is not None:
            self._clock.update(self._clock.task_ids[0], description=how_far)
        elif not self._console.is_terminal and self._clock_s() - self._printed_s >= _LINE_EVERY_S:
            self._printed_s = self._clock_s()
            text = f"  {how_far}, {self._printed_s - self._begun_s:.0f} s so far"
            self._console.print(text, highlight=False, soft_wrap=True)

    def _end_clock(self) -> None:
        if self._clock is not None:
            self._clock.stop()
            self._clock = None

    def fetched(self, done_bytes: int, total_bytes: int) -> None:
        """Move the bar of the jars, which disappears once they are there."""
        self._end_clock()  # a console shows one at a time
        if not self._bar.live.is_started:
            self.step(f"fetching the jars of Kafka, once: {total_bytes / 1e6:.0f} MB")
            self._bar.start()
        # compressed or repeated transfers may exceed the announced size
        self._bar.update(
            self._task, completed=min(done_bytes, total_bytes), total=total_bytes, visible=True
        )
        if done_bytes >= total_bytes:
            self._bar.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_clock()
        self._bar.stop()
