"""A log through the whole road on this machine, and the report of what came of it.

Replay, wait until every bucket has learned every example, count. The time reported runs from just
before the first event is read to the moment the last mark is seen to be set; starting the servers
and compiling kernels lie before it, reading the figures back after it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console

from headrace.deploy.local.background_replay import BackgroundReplay, watch_replay
from headrace.deploy.local.drain import DrainTimeout
from headrace.deploy.local.pipeline import LocalPipeline, PipelineSettings
from headrace.deploy.local.services import ShownSetupProgress
from headrace.deploy.reports import (
    FreshnessReport,
    ask_caught_up,
    check_log,
    copied,
    count_rows,
    curl_of,
    first_impressions,
    make_report,
    read_held,
    read_outcomes,
    write_report,
)
from headrace.ingest.joiner import read_state

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from headrace.deploy.local.drain import Backlog
    from headrace.ingest.replay import LogLayout


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What to replay, and what to do then."""

    road: PipelineSettings
    data: tuple[Path, ...]
    report: Path | None
    """Where the report is written; None: only shown."""
    speed: float | None
    """Times real time; None: as fast as the pipeline follows."""
    serve_after: bool
    layout: LogLayout | None = None
    """How the columns of files become events; None: the logs are directories of NDJSON."""


def run_log(settings: RunSettings, stop: threading.Event) -> None:
    """Replay, report, and serve on if asked to; return early when `stop` is set.

    Raises what an operator has to read: DeployError, StackError, StreamError, StoreError.
    """
    for path in settings.data:
        check_log(path, settings.layout)
    console = Console(stderr=True)
    with ShownSetupProgress(console) as steps, LocalPipeline(settings.road, steps) as road:
        if not road.start(stop):
            return
        replaying = BackgroundReplay(
            road.kafka, road.spec, settings.data, settings.speed, layout=settings.layout
        )
        if not watch_replay(replaying, console, stop, road.check):
            return
        with console.status("waiting until all is learned") as status:

            def tell(behind: Backlog) -> None:
                road.check()
                status.update(
                    f"waiting until all is learned: {behind.events:,} events to join, "
                    f"{behind.batches:,} batches to apply"
                )

            if not road.arrival.wait(stop, DrainTimeout(), tell):
                return
        seconds = time.monotonic() - replaying.began_s
        report = _report(road, settings, seconds, stop)
        if settings.report is not None:
            write_report(settings.report, report)
        console.print(in_words(report, settings.report), highlight=False, soft_wrap=True)
        if settings.serve_after:
            shown = first_impressions(settings.data[-1], 2, settings.layout)
            curl = curl_of(road.address, road.spec, shown)
            console.print(f"serving until Ctrl-C; ask:\n{curl}", highlight=False, soft_wrap=True)
            while not stop.wait(0.2):
                road.check()


def _report(
    road: LocalPipeline, settings: RunSettings, seconds: float, stop: threading.Event
) -> dict[str, Any]:
    rows = copied(road.store)
    server = ask_caught_up(road.address, road.spec.name, rows, stop)
    return make_report(
        state=read_state(road.kafka, road.spec),
        held=read_held(road.kafka, road.spec),
        outcomes=read_outcomes(road.kafka, road.spec),
        data=settings.data,
        layout=settings.layout,
        rows=count_rows(rows.table, road.spec.fields),
        freshness=FreshnessReport(server.p50_ms, server.p99_ms)
        if server
        else FreshnessReport(None, None),
        seconds=seconds,
    )


def in_words(report: Mapping[str, Any], path: Path | None) -> str:
    """Return the report for a person."""
    accuracy = {
        name: "-" if value is None else f"{value:.4f}"
        for name, value in report["progressive"].items()
    }
    events = report["impressions"] + report["clicks"]
    counted = (
        f"{report['impressions']:,} impressions and {report['clicks']:,} clicks learned in "
        f"{report['seconds']:.1f} s ({events / report['seconds']:,.0f} events/s), "
        f"{report['rows']:,} rows"
    )
    apart = (
        f"late clicks {report['late_clicks']:,}, duplicates {report['duplicates']:,}, "
        f"dead letters {report['dead_letters']:,}"
    )
    good = (
        f"AUC {accuracy['auc']}, within a request {accuracy['request_auc']}, log loss "
        f"{accuracy['log_loss']}, normalized entropy {accuracy['normalized_entropy']}, "
        f"calibration {accuracy['calibration']}"
    )
    lines = [counted, apart, good]
    if report["held_batches"]:
        lines.insert(
            2,
            f"held back, for it would have broken the model: {report['held_examples']:,} examples "
            f"in {report['held_batches']:,} batches (dead letters say why)",
        )
    if path is not None:
        lines.append(f"report: {path}")
    return "\n".join(lines)
