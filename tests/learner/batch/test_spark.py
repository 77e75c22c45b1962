"""`headrace.spark` on Spark itself: in one process, and on a cluster whose executor is killed.

HEADRACE_SPARK_PYTHON names the Python of an environment with `headrace[spark]`.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

PYTHON = os.environ.get("HEADRACE_SPARK_PYTHON", "")
ROOT = Path(__file__).resolve().parents[3]

pytestmark = [
    pytest.mark.skipif(not PYTHON, reason="HEADRACE_SPARK_PYTHON names no Python with PySpark"),
    pytest.mark.long,
    pytest.mark.timeout(1800),  # on a loaded machine, a JVM takes minutes to start
]


def run(master: str, redis: str, folder: Path, *flags: str) -> dict[str, Any]:
    """Run the application; return what it printed."""
    done = subprocess.run(
        [PYTHON, "-m", "tests.learner.batch.spark_job", master, redis, str(folder), *flags],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": PYTHON},
        capture_output=True,
        text=True,
        timeout=1700,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(found)
    return found


def check(found: dict[str, Any]) -> None:
    assert found["once"], "shows and clicks of all rows equal one pass"
    assert found["left"] == []
    assert found["auc"] > 0.7
    assert found["saved"]


def test_a_fit_in_one_process_counts_every_row_once(valkey_node: str, tmp_path: Path) -> None:
    found = run("local[2]", valkey_node, tmp_path, "--search", "--stream")
    check(found)
    assert found["streamed"]
    slow, fast = found["search"]
    assert fast > slow > 0.4


def test_a_fit_whose_executor_is_killed_counts_every_row_once(
    valkey_node: str, tmp_path: Path
) -> None:
    found = run("local-cluster[2,1,1024]", valkey_node, tmp_path, "--kill")
    assert len(found["killed"]) == 1
    check(found)
