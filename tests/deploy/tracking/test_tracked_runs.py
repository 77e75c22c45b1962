"""Records of runs: made from reports, histories, promotions and windows, kept, found, compared."""

import json
import math
from pathlib import Path

import pytest

from headrace.deploy.cli.runs import registry_of
from headrace.deploy.errors import DeployError
from headrace.deploy.models.shipped import path_of
from headrace.deploy.reports.tracking.run_comparison import compare_runs
from headrace.deploy.reports.tracking.run_recorder import RunOutputs, record_experiment, record_run
from headrace.deploy.reports.tracking.run_registry import RunRegistry, find_run, stored_runs
from headrace.deploy.reports.tracking.tracked_run import (
    RunKind,
    RunPoint,
    RunState,
    TrackedRun,
    experiment_run,
    promotion_run,
)
from headrace.learner.experiments.history import ArmRecord, encoded
from headrace.learner.experiments.promotion_rules import PromotionRules
from headrace.serving.promotion.promotion_state import Promotion, PromotionStage
from tests.deploy.in_process import Commands
from tests.learner.experiments.experiment_runs import FILE, write_files

SPEC = path_of("demo")
HISTORY = [
    ArmRecord("log", 0, "log", settings={"topic": "examples.news", "offsets": [0]}),
    ArmRecord("begun", 0, "control"),
    ArmRecord("begun", 1, "slow", settings={"optimizer.alpha": 0.1}),
    ArmRecord("begun", 2, "fast", settings={"optimizer.alpha": 1.0}),
    ArmRecord("scored", 1, "slow", 10, 60_000, loss=0.3, difference=-0.01),
    ArmRecord("scored", 1, "slow", 20, 120_000, loss=0.2, difference=-0.02, low=-0.03, high=-0.01),
    ArmRecord("scored", 2, "fast", 10, 60_000, loss=0.5, difference=0.5),
    ArmRecord("eliminated", 2, "fast", 10, 60_000, difference=0.5, reason="worse"),
    ArmRecord("ended", 0, "control", 30, 180_000, loss=0.25),
    ArmRecord("ended", 1, "slow", 30, 180_000, loss=0.2, difference=-0.02, reason="rank 1 of 2"),
]
REPORT = {
    "impressions": 100,
    "clicks": 9,
    "seconds": 2.5,
    "progressive": {"auc": 0.7, "log_loss": 0.3, "request_auc": None},
    "freshness_ms": {"p50": 12.0, "p99": None},
    "window_ms": 1000,
    "by_window": [
        {"begin_ms": 0, "impressions": 50, "auc": 0.6, "log_loss": 0.4},
        {"begin_ms": 500, "impressions": 50, "auc": None, "log_loss": 0.2},
    ],
}


def test_a_run_is_recorded_with_its_spec_version_data_seed_report_and_windows(
    tmp_path: Path,
) -> None:
    registry = RunRegistry(tmp_path)
    with record_run(
        RunOutputs(registry), RunKind.RUN, "news", SPEC, data=["week"], seed=3
    ) as recorder:
        assert registry.read(recorder.run.id).state is RunState.UNFINISHED
        recorder.report(REPORT)
        assert registry.read(recorder.run.id).figures["auc"] == 0.7
    [run] = stored_runs(tmp_path)
    assert run.state is RunState.DONE
    assert (run.kind, run.data, run.seed, run.seconds) == (RunKind.RUN, ("week",), 3, 2.5)
    assert run.spec == SPEC.read_text()
    assert run.version
    assert run.figures == {
        "auc": 0.7, "log_loss": 0.3, "impressions": 100, "clicks": 9, "freshness_p50_ms": 12,
    }  # fmt: skip
    assert run.points == (
        RunPoint(500, {"auc": 0.6, "log_loss": 0.4}),
        RunPoint(1000, {"log_loss": 0.2}),
    )
    assert json.loads((tmp_path / run.id / run.report).read_bytes()) == REPORT


def test_a_run_that_fails_is_recorded_with_the_error(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError),
        record_run(RunOutputs(RunRegistry(tmp_path)), RunKind.FIT, "n", SPEC),
    ):
        raise RuntimeError("no space")
    [run] = stored_runs(tmp_path)
    assert (run.state, run.reason) == (RunState.FAILED, "RuntimeError: no space")


def test_a_run_goes_on_if_its_record_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with record_run(
        RunOutputs(RunRegistry(tmp_path / "file")), RunKind.RUN, "news", SPEC
    ) as recorder:
        recorder.report(REPORT)
    assert recorder.run.figures["auc"] == 0.7
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "this run is not recorded"
    ]


def test_a_user_without_a_home_records_nothing_and_is_told_so_by_the_list(
    headrace: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_home(_: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr("pathlib.Path.expanduser", no_home)
    assert registry_of("") is None
    assert registry_of("off") is None
    assert "expected a folder, since this user has no home" in headrace("runs").err


def test_an_experiment_becomes_a_run_with_a_run_for_each_arm() -> None:
    run = experiment_run("rates", HISTORY)
    assert (run.id, run.state, run.data) == ("experiment/rates", "done", ("examples.news",))
    assert run.figures == {
        "arms": 2,
        "examples": 30,
        "difference": -0.02,
        "log_loss": 0.2,
        "control_log_loss": 0.25,
    }
    assert run.settings == {"best arm": "slow", "optimizer.alpha": 0.1}
    assert [(arm.id, arm.state) for arm in run.arms] == [
        ("experiment/rates/control", "done"),
        ("experiment/rates/slow", "done"),
        ("experiment/rates/fast", "eliminated"),
    ]
    assert run.arms[1].points[1] == RunPoint(
        120_000, {"log_loss": 0.2, "difference": -0.02}, -0.03, -0.01
    )
    assert run.arms[2].reason == "worse"


def test_an_experiment_that_goes_on_is_one_run_with_the_arms_of_its_history(tmp_path: Path) -> None:
    experiment = write_files(tmp_path, FILE)
    registry, folder = RunRegistry(tmp_path / "runs"), tmp_path / "kept"
    folder.mkdir()
    for records in (HISTORY[:5], HISTORY):
        given = (RunOutputs(registry), experiment, tmp_path / "experiment.toml", folder, ["week"])
        with record_experiment(*given) as recorder:
            (folder / "history.ndjson").write_bytes(encoded(records))
            [shown] = stored_runs(registry.folder)
            assert shown.figures["examples"] == records[-1].examples, "shown while it runs"
        assert len(recorder.run.arms) == 3
    (folder / "history.ndjson").unlink()
    [run] = stored_runs(registry.folder)
    assert (run.kind, run.state, run.seed) == (RunKind.EXPERIMENT, RunState.DONE, experiment.seed)
    assert run.figures["difference"] == -0.02
    assert "[experiment]" in run.spec


def test_a_promotion_becomes_a_run_with_its_shares_of_the_traffic() -> None:
    begun = Promotion.begin("news-2", "", "news", PromotionRules(), 1000)
    run = promotion_run(begun.moved(PromotionStage.CANARY, "in order", 3000, 0))
    assert (run.id, run.state, run.seconds) == ("promotion/news-2", "unfinished", 2.0)
    assert [point.figures["share"] for point in run.points] == [0.0, 0.01]
    assert run.decisions == ("preparing 0 %: begun", "canary 1 %: in order")


def test_a_comparison_has_settings_that_differ_and_figures_of_two_runs_or_more() -> None:
    spec = '[model]\nname = "a"\n[optimizer]\nalpha = 0.1\n'
    runs = [
        TrackedRun("one", RunKind.RUN, "a", RunState.DONE, spec=spec, figures={"auc": 0.7, "x": 1}),
        TrackedRun("two", RunKind.RUN, "a", RunState.DONE, seed=2, figures={"auc": 0.8},
                   spec=spec.replace("0.1", "0.2  # faster")),
    ]  # fmt: skip
    compared = compare_runs(runs)
    assert compared.settings == {"optimizer.alpha": ("0.1", "0.2"), "seed": ("-", "2")}
    assert compared.figures == {"auc": (0.7, 0.8)}
    assert compared.lines()[0].split() == ["one", "two"]
    assert compared.lines()[-1].split() == ["auc", "0.7", "0.8"]


def test_a_run_is_found_by_the_begin_of_its_id_if_it_is_unique() -> None:
    runs = [experiment_run("rates", HISTORY), experiment_run("rats", HISTORY)]
    assert find_run("experiment/rates", runs) is runs[0]
    assert find_run("experiment/rate", runs) is runs[0], "not one of its arms"
    assert find_run("experiment/rates/sl", runs).name == "slow"
    for unknown in ("experiment/ra", "other", ""):
        with pytest.raises(DeployError, match="expected one run"):
            find_run(unknown, runs)


def test_an_unreadable_record_is_refused_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "run.json").write_text("{")
    with pytest.raises(DeployError, match=r"a/run\.json: expected the record of a run"):
        stored_runs(tmp_path)


def test_runs_are_listed_shown_and_compared(tmp_path: Path, headrace: Commands) -> None:
    runs = tmp_path / "runs"
    for loss in (0.3, 0.2):
        with record_run(RunOutputs(RunRegistry(runs)), RunKind.RUN, "news", SPEC) as recorder:
            recorder.report({**REPORT, "progressive": {"log_loss": loss, "auc": math.nan}})
    (runs / "rates").mkdir()
    (runs / "rates" / "history.ndjson").write_bytes(encoded(HISTORY))
    given = ("--runs", str(runs))
    listed = headrace("runs", *given).out.splitlines()
    assert len(listed) == 3
    assert "log_loss 0.2" in listed[-1]
    first, second = (line.split()[0] for line in listed[1:])
    shown = headrace("runs", first, *given).out
    assert "model.name" in shown
    compared = headrace("runs", first, second, *given)
    assert "log_loss" in compared.out
    arms = json.loads(headrace("runs", "rates", "--arms", *given, "--json").out)
    assert arms["ids"] == ["rates/control", "rates/slow", "rates/fast"]
    assert "one that has arms" in headrace("runs", first, "--arms", *given).err
    assert headrace("runs", "--runs", str(tmp_path / "none")).out == ""
    off = headrace("runs", HEADRACE_RUNS="off")
    assert off.code != 0 and "expected the folder of recorded runs, got off" in off.err
