"""Runs headrace under faults: `python -m tests.chaos --minutes N --seed S --rate R --out DIR`.

Ends with 0 if every event was counted once, all parts worked again after each fault, and no process
grew without bound; else with 1 and the differences.
"""

import argparse
import logging
import secrets
import signal
import sys
import threading
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.chaos.page import as_page, milliseconds, seconds
from tests.chaos.plan import KIND_BY_NAME
from tests.chaos.record import Run
from tests.chaos.run import Options, run


def main() -> int:
    """Run, write the page, and print the closing table."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="length of the run")
    parser.add_argument("--seed", type=int, help="of the faults and the events; default: drawn")
    parser.add_argument("--rate", type=float, default=2000.0, help="events per second")
    parser.add_argument("--out", type=Path, default=Path("chaos"), help="folder of page and logs")
    parser.add_argument("--evaluated", action="store_true", help="run live evaluation too")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        choices=sorted(KIND_BY_NAME),
        help="play this kind of fault; repeatable; default: all",
    )
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    console = Console()
    seed = secrets.randbelow(1 << 30) if arguments.seed is None else arguments.seed
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    arguments.out.mkdir(parents=True, exist_ok=True)

    def tell(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True, markup=False)

    tell(f"seed {seed}, {arguments.rate:g} events/s, {arguments.minutes:g} minutes")
    options = Options(
        *(arguments.minutes, seed, arguments.rate, arguments.evaluated),
        tuple(arguments.only),
        arguments.out,
    )
    found = run(options, stop, tell)
    page = arguments.out / "chaos.html"
    page.write_text(as_page(found))
    _print(console, found)
    tell(f"page: {page}")
    return 1 if found.violations else 0


def _print(console: Console, found: Run) -> None:
    table = Table("fault", "times", "p50", "p99", "oldest answer", "fresh again after (longest)")
    for kind in found.by_kind():
        table.add_row(
            *(kind.name, f"{kind.times}"),
            *(milliseconds(kind.freshness.p50_ms), milliseconds(kind.freshness.p99_ms)),
            *(seconds(kind.oldest_s), seconds(kind.longest_s)),
        )
    for column in table.columns[1:]:
        column.justify = "right"
    console.print(table)
    calm, fault = found.calm_and_fault()
    for name, part in (("calm", calm), ("fault", fault)):
        console.print(
            f"{name}: freshness p50 {milliseconds(part.p50_ms)}, p99 {milliseconds(part.p99_ms)} "
            f"({part.clicks:,} clicks)",
            highlight=False,
        )
    counted = found.counted
    if counted is not None:
        console.print(
            f"{counted.impressions:,} impressions and {counted.clicks:,} clicks sent in "
            f"{found.seconds:.0f} s ({found.events / found.seconds:,.0f} events/s), "
            f"{len(found.episodes)} faults, {counted.late_clicks:,} late clicks, "
            f"{len(counted.parked)} parked messages, {len(found.violations)} violations",
            highlight=False,
            soft_wrap=True,
        )
    for violation in found.violations:
        console.print(f"VIOLATION: {violation}", highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
