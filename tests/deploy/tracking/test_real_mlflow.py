"""Exports to a real MLflow server, which needs an environment of its own.

python -m venv mlflow && mlflow/bin/pip install mlflow
HEADRACE_TEST_MLFLOW=mlflow/bin/mlflow python -m pytest -m long tests/deploy/tracking
"""

import importlib.util
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from headrace.deploy.local.services.ports import free_port
from headrace.deploy.local.services.waiting import wait_until
from headrace.deploy.reports.tracking.mlflow_target import MlflowTarget
from headrace.deploy.reports.tracking.tracked_run import experiment_run
from headrace.learner.experiments.history import ArmRecord

SERVER = os.environ.get("HEADRACE_TEST_MLFLOW", "")
WITHIN_S = 240.0
POINTS = 2500


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5.0) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@contextmanager
def served(folder: Path, port: int) -> Iterator[str]:
    """A server with SQLite; its state stays in the folder."""
    command = [SERVER, "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    stored = ["--backend-store-uri", f"sqlite:///{folder}/runs.db", "--serve-artifacts"]
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(
            [*command, *stored, "--artifacts-destination", str(folder / "artifacts")],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": "", "MLFLOW_DISABLE_TELEMETRY": "true"},
        )
        url = f"http://127.0.0.1:{port}"
        try:
            assert wait_until(partial(_healthy, url), WITHIN_S), "no server"
            yield url
        finally:
            process.terminate()
            process.wait(WITHIN_S)


def _history() -> list[ArmRecord]:
    begun = [ArmRecord("begun", 0, "control")]
    begun += [ArmRecord("begun", arm, f"arm{arm}", settings={"a": arm}) for arm in (1, 2)]
    scored = [
        ArmRecord("scored", arm, f"arm{arm}", at, 60_000 * at, loss=0.3, difference=0.1 / at)
        for at in range(1, POINTS + 1)
        for arm in (1, 2)
    ]
    names = ("control", "arm1", "arm2")
    ended = [ArmRecord("ended", arm, name, POINTS, loss=0.3) for arm, name in enumerate(names)]
    return begun + scored + ended


@pytest.mark.long
@pytest.mark.skipif(not SERVER, reason="needs HEADRACE_TEST_MLFLOW, the command of a whole mlflow")
@pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="needs mlflow-skinny")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_an_experiment_is_whole_in_a_real_mlflow_that_was_away(tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    port = free_port()
    tracker = MlflowTarget(f"http://127.0.0.1:{port}")
    history = _history()
    assert not tracker.export(experiment_run("rates", history), Path(), 0.0)
    with served(tmp_path, port) as url:
        assert tracker.export(experiment_run("rates", history), Path(), WITHIN_S)
        client = MlflowClient(url)
        experiment = client.get_experiment_by_name("headrace-rates")
        assert experiment is not None
        runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
        assert len(runs) == 4
        parent, arm = runs["experiment/rates"], runs["experiment/rates/arm1"]
        assert arm.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert arm.data.params["a"] == "1"
        assert len(client.get_metric_history(arm.info.run_id, "difference")) == POINTS
        assert arm.info.status == parent.info.status == "FINISHED"
