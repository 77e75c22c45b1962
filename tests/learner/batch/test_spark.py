"""`headrace.spark` on Spark itself: in one process, and on a cluster whose executor is killed.

HEADRACE_SPARK_PYTHON names the Python of an environment with `headrace[spark]`.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.docs.pages import DOCS, blocks
from tests.learner.shop import shop_rows

PYTHON = os.environ.get("HEADRACE_SPARK_PYTHON", "")
ROOT = Path(__file__).resolve().parents[3]

pytestmark = [
    pytest.mark.skipif(not PYTHON, reason="HEADRACE_SPARK_PYTHON names no Python with PySpark"),
    pytest.mark.long,
    pytest.mark.timeout(1800),  # on a loaded machine, a JVM takes minutes to start
]


GUIDE = (DOCS / "guides" / "batch.md").read_text()
SESSION = """
from pyspark.sql import SparkSession
settings = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
"""
OUTCOME = """
from headrace.spark import _connect
store = _connect(REDIS, "table")
print(spark.read.parquet("STAGED/scores").count(), store.shape().model)
store.drop()
"""


def output(command: list[str]) -> str:
    """Run a Spark application; return what it printed."""
    done = subprocess.run(
        [PYTHON, *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": PYTHON},
        capture_output=True,
        text=True,
        timeout=1700,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return done.stdout


def run(master: str, redis: str, folder: Path, *flags: str) -> dict[str, Any]:
    """Run the application of the tests; return what it printed."""
    command = ["-m", "tests.learner.batch.spark_job", master, redis, str(folder), *flags]
    found: dict[str, Any] = json.loads(output(command).splitlines()[-1])
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
    assert found["trained"] == [True, True, True, "StagedRowsMissing"]
    slow, fast = found["search"]
    assert fast > slow > 0.4


def test_a_fit_whose_executor_is_killed_counts_every_row_once(
    valkey_node: str, tmp_path: Path
) -> None:
    found = run("local-cluster[2,1,1024]", valkey_node, tmp_path, "--kill")
    assert len(found["killed"]) == 1
    check(found)


def test_the_blocks_of_the_guide_run_one_after_another(valkey_node: str, tmp_path: Path) -> None:
    rows = shop_rows(20_000).drop(["tags"])
    (tmp_path / "log").mkdir()
    for part in range(2):
        pq.write_table(rows.slice(part * 10_000, 10_000), tmp_path / f"log/{part}.parquet")
    code = "".join([SESSION, *blocks(GUIDE, "py"), OUTCOME])
    places = {
        "s3a://bucket": f"file://{tmp_path}",
        "s3://bucket": f"file://{tmp_path}",
        "file:///models": f"file://{tmp_path}/models",
        "redis://valkey:6379": valkey_node,
        "REDIS": repr(valkey_node),
        "STAGED": f"file://{tmp_path}",
    }
    for shown, used in places.items():
        code = code.replace(shown, used)
    (tmp_path / "guide.py").write_text(code)
    auc, outcome = output([str(tmp_path / "guide.py")]).splitlines()
    assert float(auc) > 0.7
    assert outcome == "20000 table"
    assert [each.name for each in (tmp_path / "stage").iterdir()] == ["log"]


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]"])
def test_arms_in_spark_tasks_decide_bit_for_bit_as_in_one_process(master: str) -> None:
    found = json.loads(output(["-m", "tests.learner.batch.spark_arms", master]).splitlines()[-1])
    assert found["equal"]
    assert found["bytes"] > 1000
