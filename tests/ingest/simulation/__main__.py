"""Search for a seed that shows a fault: `python -m tests.ingest.simulation --seeds N`."""

import argparse
import sys

from rich.progress import track

from headrace.ingest.features.label_policy import Policy
from tests.ingest.simulation.world import Broken, run


def main() -> int:
    """Run the seeds; print the first that shows a fault, and how to repeat it."""
    parser = argparse.ArgumentParser(prog="python -m tests.ingest.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    chosen = parser.parse_args()
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    for seed in track(seeds, description="simulating", disable=not sys.stderr.isatty()):
        for policy in Policy:
            try:
                run(seed, policy)
            except Broken as broken:
                print(broken)
                print(f"repeat: python -m tests.ingest.simulation --first {seed} --seeds 1")
                return 1
    print(f"{len(seeds)} seeds under {len(Policy)} policies, as the reference joins")
    return 0


if __name__ == "__main__":
    sys.exit(main())
