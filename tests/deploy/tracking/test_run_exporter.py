"""The queue of exports: complete without an outage, bounded and counted during one."""

import threading
from pathlib import Path

import pytest

from headrace.deploy.reports.tracking.history_follower import HistoryFollower
from headrace.deploy.reports.tracking.run_exporter import (
    RunExporter,
    RunUpdate,
    TargetUnavailable,
    UpdateRefused,
)
from headrace.deploy.reports.tracking.tracked_run import RunKind, RunPoint, RunState, TrackedRun
from headrace.learner.experiments.history import ArmRecord, encoded

PATIENCE_S = 60.0


class Target:
    """Takes updates, unless it is away."""

    name = "tracker"

    def __init__(self) -> None:
        self.updates: list[RunUpdate] = []
        self.away = False
        self.refuses = False
        self.asked = threading.Event()
        self.asked_again = threading.Semaphore(0)

    def apply(self, update: RunUpdate) -> None:
        self.asked.set()
        self.asked_again.release()
        if self.away:
            raise TargetUnavailable("connection refused")
        if self.refuses:
            raise UpdateRefused("too long")
        self.updates.append(update)


def run(points: int, state: RunState = RunState.UNFINISHED, arms: int = 0) -> TrackedRun:
    made = tuple(RunPoint(1000 * at, {"auc": 0.5}) for at in range(points))
    children = tuple(
        TrackedRun(f"a/{number}", RunKind.ARM, str(number), state, points=made)
        for number in range(arms)
    )
    return TrackedRun("a", RunKind.EXPERIMENT, "a", state, points=made, arms=children)


def test_each_point_is_sent_once_and_an_arm_after_its_parent() -> None:
    target = Target()
    exporter = RunExporter(target)
    for points in (1, 1, 3):
        exporter.export(run(points, arms=1))
    exporter.export(run(3, RunState.DONE))
    exporter.close(PATIENCE_S)
    assert [(each.run.id, len(each.points)) for each in target.updates] == [
        *(("a", 1), ("a/0", 1), ("a", 2), ("a/0", 2), ("a", 0)),
    ]
    assert target.updates[1].parent == target.updates[0].run
    assert target.updates[-1].run.state is RunState.DONE
    assert exporter.dropped == exporter.refused == 0


def test_an_outage_is_two_log_lines_and_loses_nothing_that_fits_the_queue(
    caplog: pytest.LogCaptureFixture,
) -> None:
    target = Target()
    target.away = True
    exporter = RunExporter(target, first_retry_s=0.001)
    for points in range(1, 6):
        exporter.export(run(points))
    for _ in range(3):
        assert target.asked_again.acquire(timeout=PATIENCE_S)
    target.away = False
    exporter.close(PATIENCE_S)
    assert [point for each in target.updates for point in each.points] == list(run(5).points)
    begin, end = (record.getMessage() for record in caplog.records)
    assert begin.startswith("tracker cannot be reached: up to 1000 updates of runs wait")
    assert end == "tracker can be reached again; updates dropped so far: 0"


def test_a_full_queue_drops_the_oldest_updates_and_counts_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    target = Target()
    target.away = True
    exporter = RunExporter(target, most=3, first_retry_s=0.001)
    exporter.export(run(1))
    assert target.asked.wait(PATIENCE_S)  # the first update is on its way
    for points in range(2, 10):
        exporter.export(run(points))
    assert exporter.dropped == 5
    target.away = False
    exporter.close(PATIENCE_S)
    assert [each.points[0].event_ms for each in target.updates] == [0, 6000, 7000, 8000]
    assert "did not get 5 updates of runs" in caplog.records[-1].getMessage()


def test_the_end_of_a_command_does_not_wait_for_a_tracker_that_is_away() -> None:
    target = Target()
    target.away = True
    exporter = RunExporter(target, first_retry_s=1000.0)
    exporter.export(run(1, arms=2))
    assert target.asked.wait(PATIENCE_S)
    exporter.close(0.0)
    assert exporter.dropped == 3


def test_a_refused_update_is_counted_and_the_next_one_is_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    target = Target()
    target.refuses = True
    exporter = RunExporter(target)
    exporter.export(run(1))
    exporter.close(PATIENCE_S)
    assert (exporter.refused, exporter.dropped) == (1, 0)
    assert caplog.records[0].getMessage() == "tracker refused an update of a: too long"


def test_scores_of_an_experiment_are_sent_with_the_next_rung(tmp_path: Path) -> None:
    follower = HistoryFollower("rates", "id", tmp_path)
    assert follower.poll() is None
    history = [ArmRecord("begun", 1, "slow")]
    for kind, points in (("scored", 0), ("rung", 1), ("scored", 0), ("scored", 0), ("rung", 3)):
        history.append(ArmRecord(kind, 1, "slow", event_ms=len(history), difference=0.1))
        (tmp_path / "history.ndjson").write_bytes(encoded(history))
        found = follower.poll()
        told = 0 if found is None else len(found.arms[0].points)
        assert told == points
    assert follower.poll() is None
