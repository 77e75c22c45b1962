"""Searches for a seed that breaks a promise: `python -m tests.simulation --seeds N [--first S]`."""

import argparse
import logging
import sys
import time
from collections import Counter, deque
from contextlib import closing

from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.simulation.ledger import Broken
from tests.simulation.search import search
from tests.simulation.world import run

_JOURNAL_LINES = 60


def main() -> int:
    """Run the seeds; at the first that breaks a promise, print it, repeat it, and stop."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--workers", type=int, help="processes to run them; default: one a core")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    console = Console()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    total: Counter[str] = Counter()
    began_s = time.monotonic()
    with closing(search(seeds, arguments.workers)) as outcomes:
        shown = track(
            outcomes, "simulating", len(seeds), console=Console(stderr=True), show_speed=True
        )
        for outcome in shown:
            if outcome.failure:
                _repeat(console, outcome.seed, outcome.failure)
                return 1
            total.update(outcome.tally)
    elapsed_s = time.monotonic() - began_s
    console.print(_report(total, len(seeds)))
    console.print(
        f"{len(seeds)} seeds, no promise broken; {elapsed_s:.0f} s, {len(seeds) / elapsed_s:.1f}/s"
    )
    return 0


def _repeat(console: Console, seed: int, failure: str) -> None:
    console.print(failure, markup=False, highlight=False, soft_wrap=True)
    console.print(f"\nOnce more, the last {_JOURNAL_LINES} things that happened:", highlight=False)
    journal: deque[str] = deque(maxlen=_JOURNAL_LINES)
    try:
        run(seed, journal)
    except Broken as broken:
        again = str(broken)
    else:
        again = ""
    console.print("\n".join(journal), markup=False, highlight=False, soft_wrap=True)
    if again != failure:
        console.print(f"\nIt did not repeat; this time: {again or 'no promise was broken'}")
    console.print(f"\nrepeat: python -m tests.simulation --first {seed} --seeds 1", soft_wrap=True)


def _report(total: Counter[str], seeds: int) -> Table:
    table = Table("what happened", "times", "a seed", title=f"{seeds} seeds")
    for what, count in sorted(total.items()):
        table.add_row(what, f"{count}", f"{count / seeds:.2f}")
    for column in table.columns[1:]:
        column.justify = "right"
    return table


if __name__ == "__main__":
    sys.exit(main())
