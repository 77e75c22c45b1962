"""Runs one fuzzer, or all: python -m tests.fuzzing [NAME] --cases N --seed S."""

import argparse
import time

from tests.fuzzing.decoders import message_decoders
from tests.fuzzing.http_decoders import http_decoders
from tests.fuzzing.isolated import explore


def main() -> int:
    """Print what became of the cases; 1 if one violated the law."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", help="a decoder of the tables; all without one")
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", default="1")
    options = parser.parse_args()
    failed = 0
    for decoder in (*message_decoders(), *http_decoders()):
        if options.name in (None, decoder.name):
            began_s = time.perf_counter()
            found = explore(decoder, options.seed, options.cases)
            seconds = time.perf_counter() - began_s
            counts = f"{found.accepted:>8} accepted {found.refused:>8} refused"
            print(f"{decoder.name:22} {counts} {seconds:6.1f} s {found.failure}", flush=True)
            failed += bool(found.failure)
    return min(failed, 1)


if __name__ == "__main__":
    raise SystemExit(main())
