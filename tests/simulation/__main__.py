"""Search for a seed that breaks a promise: `python -m tests.simulation --seeds N [--first S]`."""

from __future__ import annotations

import argparse
import logging
import sys

from rich.progress import track

from tests.simulation.world import Broken, run


def main() -> int:
    """Run the seeds; print the first that breaks a promise, and how to repeat it."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    for seed in track(seeds, description="simulating", disable=not sys.stderr.isatty()):
        try:
            run(seed)
        except Broken as broken:
            print(broken)
            print(f"repeat: python -m tests.simulation --first {seed} --seeds 1")
            return 1
    print(f"{len(seeds)} seeds, no promise broken")
    return 0


if __name__ == "__main__":
    sys.exit(main())
