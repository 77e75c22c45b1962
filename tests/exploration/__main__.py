"""Explores the models: `python -m tests.exploration [--faults N] [--model NAME]`."""

import argparse
import sys

from tests.exploration.models import MODELS
from tests.exploration.search import explore


def main() -> int:
    """Explore, print states, time and coverage, and stop at the first broken promise."""
    parser = argparse.ArgumentParser(prog="python -m tests.exploration", description=__doc__)
    parser.add_argument("--faults", type=int, default=1, help="most faults in one run")
    parser.add_argument("--model", choices=[model.name for model in MODELS])
    arguments = parser.parse_args()
    for model in MODELS:
        if arguments.model in (None, model.name):
            found = explore(model, arguments.faults)
            print(found, flush=True)
            if found.broken:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
