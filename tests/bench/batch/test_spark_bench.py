"""Tests `tests.bench.spark` without Spark: its medians, and its answer where PySpark is missing."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.bench.batch.spark import SKIPPED, Measurement, figures

ROOT = Path(__file__).parents[3]


def test_figures_are_medians_and_ratios_to_sparks_regression() -> None:
    ours = [Measurement(100.0, 50.0, 0.7), Measurement(300.0, 60.0, 0.8)]
    found = figures({"headrace": ours, "spark_lr": [Measurement(50.0, 11.0, 0.6)]})
    assert found["fit_rows_per_second"] == {"headrace": 200, "spark_lr": 50}
    assert found["fit_to_spark_lr"] == 4.0
    assert found["transform_to_spark_lr"] == 5.0


@pytest.mark.skipif(find_spec("pyspark") is not None, reason="PySpark is in this environment")
def test_the_benchmark_is_skipped_without_pyspark_and_names_the_environment_it_needs() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "HEADRACE_SPARK_PYTHON"}
    command = [sys.executable, "-m", "tests.bench.spark", "--quick", "--json"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == SKIPPED
    assert f"SKIPPED := {SKIPPED}\n" in (ROOT / "Makefile").read_text()
    assert "expected PySpark 4.2.0 in this environment, got none" in done.stderr
