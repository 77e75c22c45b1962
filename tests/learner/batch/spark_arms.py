"""A Spark application: the arms of an experiment learn in Spark tasks, and decide as without.

It runs in an environment of its own, like `spark_job`, and prints one JSON object.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from headrace.learner.experiments.executors.execution import open_executor
from headrace.learner.experiments.executors.executor_kind import ExecutorKind
from tests.learner.experiments.executor_runs import run_remotely
from tests.learner.experiments.experiment_runs import log_of, run_stopped, write_files


def main(master: str) -> None:
    """Run one experiment in this process and one in tasks, and compare the histories."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.executor.memory": "512m",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
    }
    SparkSession.builder.master(master).config(map=settings).getOrCreate()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        experiment = write_files(folder)
        log = log_of(experiment, 600)
        serial = run_stopped(experiment, log, folder / "serial", [])[2]
        with open_executor(ExecutorKind.SPARK) as execute:
            found = run_remotely(experiment, log, folder / "spark", execute)
    print(json.dumps({"bytes": len(serial), "equal": found == serial}))


if __name__ == "__main__":
    main(sys.argv[1])
