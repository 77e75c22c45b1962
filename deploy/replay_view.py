"""The progress bar of a replay, or a line now and then where there is no terminal."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from rich.console import Console

    from deploy.log_replay import LogReplay

LOOK_S = 0.05
LINE_EVERY_S = 5.0


def watch_replay(
    replaying: LogReplay,
    console: Console,
    stop: threading.Event,
    check: Callable[[], None] = lambda: None,
) -> bool:
    """Start the replay and show it until its end; return whether it came to its end.

    `check` is called all the while; what it raises stops the replay. Raises what the replay raised.
    """
    said_s = time.monotonic()
    with _bar(console) as bar:
        task = bar.add_task("replaying", events=0, rate=0.0, at="")
        replaying.start()
        try:
            while replaying.is_alive() and not stop.is_set():
                check()
                replaying.join(LOOK_S)
                said = _line(replaying)
                now = replaying.progress
                bar.update(
                    task,
                    completed=now.bytes_read,
                    total=now.bytes_total or None,
                    events=said.events,
                    rate=said.events_s,
                    at=said.at,
                )
                if not console.is_terminal and time.monotonic() - said_s >= LINE_EVERY_S:
                    said_s = time.monotonic()
                    console.print(
                        f"replayed {said.events:,} events up to {said.at}, {said.events_s:,.0f}/s",
                        highlight=False,
                    )
        finally:
            replaying.stop_showing()
            replaying.join()
    if replaying.failure is not None:
        raise replaying.failure
    return not replaying.replayed.stopped


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[events]:,} events, {task.fields[rate]:,.0f}/s, {task.fields[at]}"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


class _Said(NamedTuple):
    events: int
    events_s: float
    at: str


def _line(replaying: LogReplay) -> _Said:
    now = replaying.progress
    passed_s = time.monotonic() - replaying.began_s
    at = datetime.fromtimestamp(now.event_ms / 1000, UTC) if now.event_ms else None
    return _Said(
        now.events,
        now.events / passed_s if passed_s > 0 else 0.0,
        f"{at:%Y-%m-%d %H:%M}" if at else "the beginning",
    )
