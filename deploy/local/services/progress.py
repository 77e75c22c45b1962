"""What a person sees while the stack comes up: a line a step, and a bar while jars are fetched."""

from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn


class SetupProgress(Protocol):
    """Told what is being done; the stack says it here and nowhere else."""

    def step(self, what: str) -> None:
        """`what` begins."""

    def fetched(self, done_bytes: int, total_bytes: int) -> None:
        """So much of the jars of Kafka is here."""


class SilentSetupProgress:
    """For whoever does not want to know."""

    def step(self, what: str) -> None:
        """Say nothing."""

    def fetched(self, done_bytes: int, total_bytes: int) -> None:
        """Say nothing."""


class ShownSetupProgress:
    """SetupProgress on a console: lines that stay, and a bar that goes when the jars are there."""

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

    def step(self, what: str) -> None:
        """Print a line."""
        self._console.print(what, highlight=False, soft_wrap=True)

    def fetched(self, done_bytes: int, total_bytes: int) -> None:
        """Move the bar."""
        if not self._bar.live.is_started:
            self.step(f"fetching the jars of Kafka, once: {total_bytes / 1e6:.0f} MB")
            self._bar.start()
        # what is sent compressed, or twice, may exceed what was announced
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
        self._bar.stop()
