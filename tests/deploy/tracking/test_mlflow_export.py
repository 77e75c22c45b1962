"""Exports to an MLflow server, through MLflow's own client."""

import importlib.util
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.deploy.errors import BadOption, DeployError
from headrace.deploy.local.services.ports import free_port
from headrace.deploy.models.shipped import path_of
from headrace.deploy.reports.tracking import mlflow_target
from headrace.deploy.reports.tracking.mlflow_target import MlflowTarget
from headrace.deploy.reports.tracking.run_recorder import RunOutputs, record_run
from headrace.deploy.reports.tracking.run_registry import RunRegistry
from headrace.deploy.reports.tracking.tracked_run import (
    RunKind,
    RunPoint,
    RunState,
    TrackedRun,
    experiment_run,
)
from headrace.learner.experiments.history import ArmRecord, encoded
from tests.deploy.in_process import Commands

needs_mlflow = pytest.mark.skipif(
    importlib.util.find_spec("mlflow") is None, reason="needs mlflow-skinny (extra mlflow)"
)
quiet = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
SPEC = path_of("demo")
HISTORY = [
    ArmRecord("begun", 0, "control"),
    ArmRecord("begun", 1, "slow", settings={"optimizer.alpha": 0.1}),
    ArmRecord("scored", 1, "slow", 10, 60_000, loss=0.3, difference=-0.01, low=-0.1, high=0.1),
    ArmRecord("rung", 1, "slow", 10, 60_000, reason="rank 1 of 1"),
    ArmRecord("ended", 0, "control", 30, 180_000, loss=0.25),
    ArmRecord("ended", 1, "slow", 30, 180_000, loss=0.2, difference=-0.02, reason="rank 1 of 2"),
]

RUN = TrackedRun(
    *("a", RunKind.RUN, "demo", RunState.UNFINISHED),
    points=tuple(RunPoint(1000 * at, {"auc": 0.5}) for at in range(100)),
)


@pytest.fixture(autouse=True)
def _no_urllib3_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "headrace")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder that MLflow's client takes for a server: the same calls, without a process."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return f"file://{tmp_path / 'mlflow'}"


def client_of(store: str) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(store)


def runs_in(store: str) -> dict[str, Any]:
    """Return all runs by the ids that headrace gave them."""
    experiments = [each.experiment_id for each in client_of(store).search_experiments()]
    found = client_of(store).search_runs(experiments)
    assert len({each.data.tags["headrace.id"] for each in found}) == len(found)
    return {each.data.tags["headrace.id"]: each for each in found}


@needs_mlflow
@quiet
def test_a_run_is_exported_with_params_metrics_tags_and_artifacts(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    log_batch: Any = MlflowClient.log_batch
    sizes: list[int] = []

    def sized(*arguments: Any, metrics: Sequence[Any] = (), **others: Any) -> Any:
        sizes.append(len(metrics))
        return log_batch(*arguments, metrics=metrics, **others)

    monkeypatch.setattr(MlflowClient, "log_batch", sized)
    outputs = RunOutputs(RunRegistry(tmp_path), MlflowTarget(store))
    with record_run(outputs, RunKind.DEMO, "demo", SPEC, data=["log"], seed=7) as recorder:
        for at in range(1500):
            recorder.point(1_700_000_000_000 + 1000 * at, {"auc": at / 1500})
        recorder.figures({"auc": 0.9})
    assert max(sizes) == 1000, "the most that a server takes at once"
    [run] = runs_in(store).values()
    assert client_of(store).get_experiment(run.info.experiment_id).name == "headrace-demo"
    assert (run.info.run_name, run.info.status) == (recorder.run.id, "FINISHED")
    assert (run.data.params["seed"], run.data.params["model.name"]) == ("7", "demo")
    points = client_of(store).get_metric_history(run.info.run_id, "auc")
    assert [each.step for each in points] == list(range(1500))
    assert points[1].timestamp == 1_700_000_001_000
    assert run.data.metrics["final_auc"] == 0.9
    assert run.data.tags["headrace.state"] == "done"
    [kept] = Path(run.info.artifact_uri.removeprefix("file://")).iterdir()
    assert (kept.name, kept.read_bytes()) == ("spec.toml", SPEC.read_bytes())


@needs_mlflow
@quiet
def test_the_arms_of_an_experiment_are_nested_and_a_repeated_export_makes_no_second_run(
    store: str,
) -> None:
    for _ in range(2):
        assert MlflowTarget(store).export(experiment_run("rates", HISTORY), Path())
    runs = runs_in(store)
    parent, arm = runs["experiment/rates"], runs["experiment/rates/slow"]
    assert len(runs) == 3
    assert arm.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert parent.data.tags["headrace.best_arm"] == "slow"
    assert arm.info.experiment_id == parent.info.experiment_id
    assert arm.data.params["optimizer.alpha"] == "0.1"
    assert set(arm.data.metrics) == {
        *("log_loss", "difference", "difference_low", "difference_high"),
        *("final_examples", "final_log_loss", "final_difference"),
    }
    assert arm.info.status == "FINISHED"


@needs_mlflow
@quiet
def test_an_export_is_retried_until_the_server_is_back(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import TEMPORARILY_UNAVAILABLE

    send = MlflowTarget._send
    away = iter([MlflowException("away", TEMPORARILY_UNAVAILABLE), ConnectionError("away")])

    def sent_later(*arguments: Any) -> str:
        for error in away:
            raise error
        return send(*arguments)

    monkeypatch.setattr(MlflowTarget, "_send", sent_later)
    monkeypatch.setattr(mlflow_target, "_RETRY_S", 0.0)
    assert MlflowTarget(store).export(RUN, Path())
    assert list(away) == []
    assert list(runs_in(store)) == [RUN.id]


@needs_mlflow
@quiet
def test_a_server_that_is_missing_costs_one_line_and_no_run(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow_target.MlflowTarget.export, "__defaults__", (0.0,))
    outputs = RunOutputs(None, MlflowTarget(f"http://user:secret@127.0.0.1:{free_port()}"))
    with record_run(outputs, RunKind.RUN, "demo", SPEC) as recorder:
        recorder.point(1000, {"auc": 0.5})
    assert recorder.run.state is RunState.DONE
    [line] = [each for each in caplog.messages if "MLflow at" in each]
    assert f"Send it again: headrace runs {recorder.run.id} --track" in line
    assert "secret" not in caplog.text


@needs_mlflow
@quiet
def test_stored_runs_are_exported_by_hand(tmp_path: Path, store: str, headrace: Commands) -> None:
    (tmp_path / "rates").mkdir()
    (tmp_path / "rates" / "history.ndjson").write_bytes(encoded(HISTORY))
    given = ("runs", "rates", "--runs", str(tmp_path), "--track")
    away = f"http://127.0.0.1:{free_port()}"
    assert headrace(*given, away, "--patience", "0").code == 1
    assert headrace(*given, store, MLFLOW_ALLOW_FILE_STORE="true").code == 0
    assert len(runs_in(store)) == 3


def test_a_missing_package_and_a_bad_address_are_refused_before_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(BadOption, match="expected a URI such as http"):
        MlflowTarget("localhost:5000")
    monkeypatch.setattr(mlflow_target, "find_spec", lambda _name: None)
    with pytest.raises(DeployError, match=r"pip install 'headrace\[mlflow\]'"):
        MlflowTarget("http://localhost:5000")
