"""The sample week with the real parts, while joiner and learner are killed in the middle of it.

Research data that is not in the repository: skipped where it is absent.
"""

import json
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.deploy.models.shipped import path_of
from headrace.runtime.parent_guard import GUARD_SCRIPT
from tests.deploy.command import running

WEEK = Path(__file__).resolve().parents[3] / "shared" / "data" / "ebnerd_week1"
IMPRESSIONS, CLICKS = 278_139, 24_829

pytestmark = pytest.mark.skipif(
    not WEEK.is_dir(), reason="the sample week (../shared/data/ebnerd_week1) is not here"
)


def _pid_of(parent: psutil.Process, *words: str) -> int | None:
    """The part of headrace whose command line has these words in a row, not its guard."""
    for child in parent.children(recursive=True):
        try:
            command = child.cmdline()
        except psutil.NoSuchProcess:
            continue
        python = bool(command) and "python" in Path(command[0]).name
        named = "-m" in command and " ".join(words) in " ".join(command)
        if python and named and str(GUARD_SCRIPT) not in command:
            return int(child.pid)
    return None


def _killed_run(
    model: str, report: Path, kills: list[tuple[str, tuple[str, ...]]], *more: str
) -> Any:
    arguments = ["run", "--model", str(path_of(model)), "--data", str(WEEK), *more]
    with running(*arguments, "--report", str(report)) as run:
        for pattern, words in kills:
            run.wait_for(pattern)
            pid = _pid_of(psutil.Process(run.process.pid), *words)
            assert pid is not None, f"{words} does not run:\n{run.output}"
            psutil.Process(pid).send_signal(signal.SIGKILL)
        assert run.end() == 0, run.output
    return json.loads(report.read_text())


def _check_counts(report: Any) -> None:
    assert report["impressions"] == IMPRESSIONS
    assert report["clicks"] == CLICKS
    shows, clicks = report["shows_by_field"], report["clicks_by_field"]
    assert len(shows) >= 8
    assert {name: n for name, n in shows.items() if n != IMPRESSIONS} == {}
    late = report["late_clicks"] + report["unmatched_clicks"]
    assert {name: n for name, n in clicks.items() if n + late != CLICKS} == {}


# test_run.py, test_several_learners.py and test_two_joiners.py count events beside kills
@pytest.mark.long
def test_counters_are_exact_and_accuracy_holds_when_joiner_and_learner_are_killed(
    tmp_path: Path,
) -> None:
    replaying = r"news is served"
    report = _killed_run(
        "news",
        tmp_path / "report.json",
        # a machine that replays the week within 5 s prints no progress of the replay
        [(replaying, ("ingest", "join")), (r"joiner died", ("learner", "run"))],
        "--no-evaluate",  # nothing here is asked of it; with it run the longer proofs below
    )
    _check_counts(report)
    progressive = report["progressive"]
    assert progressive["auc"] >= 0.765
    assert progressive["request_auc"] >= 0.715
    assert progressive["log_loss"] <= 0.265
    assert abs(progressive["calibration"] - 1) <= 0.03


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("model", "auc", "request_auc"), [("news_ids", 0.71, 0.62),
                                                           ("news_window", 0.75, 0.0)])  # fmt: skip
def test_the_other_models_of_the_sample_week_reach_their_accuracy(
    model: str, auc: float, request_auc: float, tmp_path: Path
) -> None:
    report = _killed_run(model, tmp_path / "report.json", [])
    _check_counts(report)
    assert report["progressive"]["auc"] >= auc
    assert report["progressive"]["request_auc"] >= request_auc
