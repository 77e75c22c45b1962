"""Shows the progress of a start: a line for each step, a clock for long ones, a bar for jars."""

from types import TracebackType
from typing import Protocol, Self

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


class SetupProgress(Protocol):
    """Receives every step of a start."""

    def step(self, what: str, *, long: bool = False) -> None:
        """A step begins. long: it takes seconds, until the next step."""

    def fetched(self, done_bytes: int, total_bytes: int) -> None:
        """This much of Kafka's jars has been fetched."""


class SilentSetupProgress:
    """Discards all progress."""

    def step(self, what: str, *, long: bool = False) -> None:
        """Do nothing."""

    def fetched(self, done_bytes: int, total_bytes: int) -> None:
        """Do nothing."""


class ShownSetupProgress:
    """Prints progress on a console. The bar disappears once the jars are there."""

    def __init__(self, console: Console) -> None:
        self._console = console
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
        """Print a line; on a terminal, count the seconds of a long step below it."""
        self._end_clock()
        self._console.print(what, highlight=False, soft_wrap=True)
        if long and self._console.is_terminal:
            columns = SpinnerColumn(), TimeElapsedColumn()
            self._clock = Progress(*columns, console=self._console, transient=True)
            self._clock.add_task("")
            self._clock.start()

    def _end_clock(self) -> None:
        if self._clock is not None:
            self._clock.stop()
            self._clock = None

    def fetched(self, done_bytes: int, total_bytes: int) -> None:
        """Move the bar."""
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end_clock()
        self._bar.stop()
