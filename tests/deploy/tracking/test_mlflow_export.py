"""Exports to an MLflow server over HTTP, through MLflow's own client."""

import importlib.util
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.deploy.errors import BadOption, DeployError
from headrace.deploy.models.shipped import path_of
from headrace.deploy.reports.tracking import mlflow_target
from headrace.deploy.reports.tracking.mlflow_target import MlflowTarget, run_params
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
from tests.deploy.in_process import Commands, headrace
from tests.deploy.tracking.mlflow_server import fake_mlflow

__all__ = ["headrace"]

needs_mlflow = pytest.mark.skipif(
    importlib.util.find_spec("mlflow") is None, reason="needs mlflow-skinny (extra mlflow)"
)
quiet = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
SPEC = path_of("demo")
PATIENCE_S = 120.0
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


@needs_mlflow
@quiet
def test_a_run_is_exported_with_params_metrics_tags_and_artifacts(tmp_path: Path) -> None:
    with fake_mlflow() as fake:
        outputs = RunOutputs(RunRegistry(tmp_path), MlflowTarget(fake.url))
        with record_run(outputs, RunKind.DEMO, "demo", SPEC, data=["log"], seed=7) as recorder:
            for at in range(1500):
                recorder.point(1_700_000_000_000 + 1000 * at, {"auc": at / 1500})
            recorder.figures({"auc": 0.9})
    assert list(fake.experiments) == ["headrace-demo"]
    run = fake.run(recorder.run.id)
    assert fake.runs[run]["status"] == "FINISHED"
    assert fake.params[run]["seed"] == "7"
    assert fake.params[run]["model.name"] == "demo"
    points = [each for each in fake.metrics[run] if each["key"] == "auc"]
    assert [each["step"] for each in points] == list(range(1500))
    assert points[1]["timestamp"] == 1_700_000_001_000
    assert [each["value"] for each in fake.metrics[run] if each["key"] == "final_auc"] == [0.9]
    assert max(fake.batches) <= 1000
    assert fake.tags[run]["headrace.state"] == "done"
    assert sorted(name.rpartition("/")[2] for name in fake.artifacts) == ["spec.toml"]
    assert SPEC.read_bytes() in fake.artifacts.values()


@needs_mlflow
@quiet
def test_the_arms_of_an_experiment_are_nested_and_a_repeated_export_makes_no_second_run() -> None:
    experiment = experiment_run("rates", HISTORY)
    with fake_mlflow() as fake:
        for _ in range(2):
            assert MlflowTarget(fake.url).export(experiment, Path(), PATIENCE_S)
    assert len(fake.runs) == 3
    parent, arm = fake.run("experiment/rates"), fake.run("experiment/rates/slow")
    assert fake.tags[arm]["mlflow.parentRunId"] == parent
    assert fake.tags[parent]["headrace.best_arm"] == "slow"
    assert fake.runs[arm]["experiment_id"] == fake.runs[parent]["experiment_id"] == "1"
    assert fake.params[arm]["optimizer.alpha"] == "0.1"
    assert {each["key"] for each in fake.metrics[arm]} == {
        *("log_loss", "difference", "difference_low", "difference_high"),
        *("final_examples", "final_log_loss", "final_difference"),
    }
    assert fake.runs[arm]["status"] == "FINISHED"


@needs_mlflow
@quiet
def test_an_export_is_retried_until_the_server_is_back() -> None:
    with fake_mlflow() as fake, ThreadPoolExecutor(1) as pool:
        fake.status = 503
        sent = pool.submit(MlflowTarget(fake.url).export, RUN, Path(), PATIENCE_S)
        assert fake.refused.wait(PATIENCE_S)
        assert not fake.runs
        fake.status = 200
        assert sent.result(PATIENCE_S)
    assert len(fake.metrics[fake.run(RUN.id)]) == 100


@needs_mlflow
@quiet
def test_a_server_that_is_missing_costs_one_line_and_no_run(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow_target.MlflowTarget.export, "__defaults__", (0.0,))
    with fake_mlflow() as fake:
        address = fake.url.replace("//", "//user:secret@")
    outputs = RunOutputs(None, MlflowTarget(address))
    with record_run(outputs, RunKind.RUN, "demo", SPEC) as recorder:
        recorder.point(1000, {"auc": 0.5})
    assert recorder.run.state is RunState.DONE
    [line] = [each for each in caplog.messages if "MLflow at" in each]
    assert f"Send it again: headrace runs {recorder.run.id} --track" in line
    assert "secret" not in caplog.text


@needs_mlflow
@quiet
def test_stored_runs_are_exported_by_hand(tmp_path: Path, headrace: Commands) -> None:
    (tmp_path / "rates").mkdir()
    (tmp_path / "rates" / "history.ndjson").write_bytes(encoded(HISTORY))
    with fake_mlflow() as fake:
        given = ("runs", "rates", "--runs", str(tmp_path), "--track", fake.url)
        assert headrace(*given).code == 0
        assert len(fake.runs) == 3
        fake.status = 503
        failed = headrace(*given, "--patience", "0")
        assert failed.code == 1


def test_a_missing_package_and_a_bad_address_are_refused_before_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(BadOption, match="expected a URI such as http"):
        MlflowTarget("localhost:5000")
    monkeypatch.setattr(mlflow_target, "find_spec", lambda _name: None)
    with pytest.raises(DeployError, match=r"pip install 'headrace\[mlflow\]'"):
        MlflowTarget("http://localhost:5000")


def test_params_have_names_and_lengths_that_mlflow_takes() -> None:
    run = TrackedRun(
        *("a", RunKind.RUN, "a", RunState.DONE),
        settings={"fields.a[0]=x": "y" * 1000, "best arm": "slow"},
        points=(RunPoint(0, {"auc": 0.5}),),
    )
    assert json.dumps(run_params(run)) == json.dumps({"fields.a_0__x": "y" * 500, "kind": "run"})
