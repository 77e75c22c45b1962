"""Measures the same requests with the load generator locust, beside headrace's own client.

locust runs in a process of its own, because it replaces all of Python's sockets by gevent's. It
shares two cores with the server, the shards and the pusher, so its processor time is missing there.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.bench.serving.asking import CONNECTIONS

_USERS = Path(__file__).with_name("users.py")
_AT_ONCE = 1000
"""Users who come a second: all of them at the beginning."""
_MORE_S = 2
"""It runs for so much longer than it measures: users come and connect."""
_TO_END_S = 30


class Asked(NamedTuple):
    """The figures of locust."""

    per_second: float
    p50_ms: float
    p99_ms: float
    refused: int
    processor_us: float
    """Processor time of locust itself per request."""


def ask(port: int, requests: Sequence[bytes], seconds: float, rate_per_s: float | None) -> Asked:
    """Ask on eight connections at this rate, or as fast as there are answers."""
    heads, bodies = zip(*(each.split(b"\r\n\r\n", 1) for each in requests), strict=True)
    what: dict[str, Any] = {
        "path": heads[0].split(b" ")[1].decode(),
        "bodies": [each.decode() for each in bodies],
        "rate_per_s_of_each": None if rate_per_s is None else rate_per_s / CONNECTIONS,
    }
    with tempfile.TemporaryDirectory() as folder:
        asked, found = Path(folder) / "asked.json", Path(folder) / "found.json"
        asked.write_text(json.dumps(what))
        command = [sys.executable, "-m", "locust", "--locustfile", str(_USERS), "--headless"]
        command += ["--users", str(CONNECTIONS), "--spawn-rate", str(_AT_ONCE), "--only-summary"]
        command += ["--run-time", f"{seconds + _MORE_S:.0f}s", "--host", f"http://127.0.0.1:{port}"]
        ended = subprocess.run(
            command,
            env={**os.environ, "ASKED": str(asked), "FOUND": str(found)},
            timeout=seconds + _TO_END_S,
            capture_output=True,
            text=True,
        )
        said = json.loads(found.read_text()) if found.exists() else {"waits_ms": []}
    count = len(said["waits_ms"])
    if not count:
        raise RuntimeError(f"expected answers, found none: {ended.stdout}{ended.stderr}")
    p50, p99 = np.percentile(said["waits_ms"], (50, 99)).round(2).tolist()
    processor_us = 1e6 * said["processor_s"] / count
    return Asked(count / said["seconds"], p50, p99, said["refused"], processor_us)
