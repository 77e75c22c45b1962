"""The options and the output that every benchmark has."""

import argparse
import json

from rich.console import Console


def bench_parser(
    name: str, story: str | None, quick: str = "within a minute"
) -> argparse.ArgumentParser:
    """Return the parser of `python -m tests.bench.NAME`, with --quick and --json.

    story: the docstring of the benchmark. quick: what --quick leaves out.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m tests.bench.{name}",
        description=story,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    return parser


def print_figures(figures: object, *, as_json: bool) -> None:
    """Print figures: as one line of JSON, or indented and coloured for a reader."""
    text = json.dumps(figures)
    if as_json:
        print(text)
    else:
        Console(soft_wrap=True).print_json(text)
