"""Finds the seed that notices each mutant: `python -m tests.simulation.mutant_seeds [--only NAME]`.

`mutant_seeds.json` keeps the seeds, so that a test of a mutant runs one world. After a change of
the simulation, a mutant may be noticed by another seed; the test then searches on from the old one.
"""

import argparse
import json
import logging
from pathlib import Path

from tests.simulation.mutant import Mutant
from tests.simulation.mutants import MUTANTS
from tests.simulation.search import outcome

SEEDS = 200
_FILE = Path(__file__).with_suffix(".json")


def first_seeds() -> dict[str, int]:
    """Return by name the seed from which to look for a mutant."""
    seeds: dict[str, int] = json.loads(_FILE.read_text())
    return seeds


def seed_that_notices(mutant: Mutant, first: int = 0) -> int | None:
    """Return the first of 200 seeds that notices a mutant; None if none does."""
    with mutant.at_large():
        for seed in range(first, first + SEEDS):
            if outcome(seed, mutant.about).failure:
                return seed
    return None


def main() -> None:
    """Search from 0, and keep what was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutant_seeds")
    parser.add_argument("--only", action="append", help="name of a mutant; may be repeated")
    only = parser.parse_args().only or [mutant.name for mutant in MUTANTS]
    logging.disable(logging.CRITICAL)
    before = first_seeds()
    kept = {mutant.name: before.get(mutant.name, 0) for mutant in MUTANTS}
    for mutant in MUTANTS:
        if mutant.name in only:
            seed = seed_that_notices(mutant)
            if seed is None:
                seed = seed_that_notices(mutant, kept[mutant.name])
            print(f"{mutant.name}: {seed}", flush=True)
            kept[mutant.name] = seed or 0
            _FILE.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
