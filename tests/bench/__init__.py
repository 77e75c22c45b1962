"""Benchmarks, a folder for each part. Each runs alone: `python -m tests.bench.NAME --quick --json`.

The commands leave the folder out, so that a benchmark can move without a change to the pages that
name it. Imports name the folder.
"""

from pathlib import Path

__path__ += [
    str(Path(__file__).with_name(part))
    for part in (
        *("ingest", "learner", "batch", "generated", "pserver"),
        *("serving", "pipeline", "ebnerd", "public", "experiments"),
    )
]
