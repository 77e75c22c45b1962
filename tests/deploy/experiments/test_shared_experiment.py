"""Machines that share a search, by the commands of docs/guides/experiments.md; one is killed."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.deploy.command import GENEROUS_S, Running, running
from tests.deploy.in_process import Commands, headrace
from tests.docs.pages import DOCS, commands

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.thorough
optuna = pytest.importorskip("optuna")

__all__ = ["headrace"]  # a fixture

PAGE = (DOCS / "guides" / "experiments.md").read_text()
SHARING = [line for line in commands(PAGE) if "--storage" in line]
ROWS = 20_000
FILES = {
    "news.toml": """
[model]
name = "news"
[fields.user]
number = 1
transform = "id"
[fields.item]
number = 2
transform = "id"
""",
    "layout.toml": """
[event]
timestamp = "time"
[click]
column = "clicked"
""",
    "experiment.toml": """
[experiment]
name = "rates"
control = "news.toml"
arms = 6
slots = 4
[space]
optimizer.alpha = { log = [0.01, 1.0] }
[rungs]
first = 4000
factor = 2
[decision]
batch_s = 60
cycle_s = 600
""",
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with an experiment and a log of two hours, and one for each machine."""
    dice = np.random.default_rng(1)
    columns = {
        "user": pa.array(dice.integers(0, 500, ROWS)),
        "item": pa.array(dice.integers(0, 50, ROWS)),
        "time": pa.array(1_700_000_000_000 + np.arange(ROWS) * (7_200_000 // ROWS)),
        "clicked": pa.array((dice.random(ROWS) < 0.1).astype(int)),
    }
    for machine in ("serial", "one", "two", "three"):
        folder = tmp_path / machine
        (folder / "log").mkdir(parents=True)
        pyarrow.parquet.write_table(
            pa.table(columns), folder / "log" / "rows.parquet", row_group_size=1000
        )
        for name, text in FILES.items():
            (folder / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("line", SHARING, ids=["journal", "sqlite"])
def test_machines_end_with_the_history_of_a_serial_run_though_one_is_killed(
    home: Path, line: str
) -> None:
    line = line.replace(" /shared", f" {home}").replace("rates.db", f"{home}/rates.db")
    words = shlex.split(line)[1:]
    shared = [*words[: words.index("--lease")], "--lease", "3"] if "--lease" in words else words
    alone = shared[: shared.index("--storage")]
    with running(*alone, folder=home / "serial") as serial:
        assert serial.end() == 0, serial.output
    expected = history_of(home / "serial")
    with running(*shared, "--lease", "3", "--save-every", "0", folder=home / "one") as one:
        wait_for_checkpoint(home / "one", one)
        one.process.send_signal(signal.SIGKILL)
        one.end()
    with ExitStack() as opened:
        machines = [
            opened.enter_context(running(*shared, "--lease", "3", folder=home / name))
            for name in ("two", "three")
        ]
        for machine in machines:
            assert machine.end() == 0, machine.output
    results = [machine.output.partition("best: ")[2] for machine in machines]
    assert results[0] == results[1] == serial.output.partition("best: ")[2] != ""
    assert history_of(home / "two") == history_of(home / "three") == expected
    trials = trials_of(shared[shared.index("--storage") + 1])
    lost = (home / "one" / "runs" / "shared" / "machine").read_text()
    taken = [each for each in trials if each.user_attrs["machine"] == lost]
    # FAIL, or the end of an arm whose last losses it had published before it was killed
    assert taken
    assert all(each.state.is_finished() for each in taken)
    with running(*shared, folder=home / "one") as one:
        assert one.end() == 0, one.output
    assert history_of(home / "one") == expected


def history_of(folder: Path) -> bytes:
    """Return the history of a machine."""
    return (folder / "runs" / "shared" / "history.ndjson").read_bytes()


def trials_of(storage: str) -> list[Any]:
    """Return the trials of the study."""
    if "://" not in storage:
        backend = optuna.storages.journal.JournalFileBackend(storage)
        study = optuna.load_study(
            study_name="rates", storage=optuna.storages.JournalStorage(backend)
        )
    else:
        study = optuna.load_study(study_name="rates", storage=storage)
    found: list[Any] = study.trials
    return found


def wait_for_checkpoint(folder: Path, machine: Running) -> None:
    """Wait until a machine has learned something."""
    deadline_s = time.monotonic() + GENEROUS_S
    while not list(folder.glob("runs/shared/work-*/shared-arms/arm-*/chunk-*.pickle")):
        assert machine.process.poll() is None, machine.output
        assert time.monotonic() < deadline_s, machine.output
        threading.Event().wait(0.02)


@pytest.mark.parametrize(
    ("storage", "expected"),
    [
        ("nowhere/search.journal", "nowhere, which is no folder"),
        ("sqlite:///nowhere/search.db", "nowhere, which is no folder"),
        ("sqlite://", "a database in memory"),
        ("nosuch://name:secret@search", "Can't load plugin: sqlalchemy.dialects:nosuch"),
        ("redis://localhost", "Can't load plugin: sqlalchemy.dialects:redis"),
        ("experiment.toml", "another file"),
        (".", "a folder"),
    ],
)
def test_a_bad_storage_is_refused_with_its_reason(
    home: Path,
    storage: str,
    expected: str,
    headrace: Commands,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(home / "one")
    ended = headrace(*shlex.split(SHARING[0].replace("/shared/rates.journal", storage))[1:])
    assert ended.code == 2
    assert expected in ended.err
    assert "[BadStorage]" in ended.err
    assert "secret" not in ended.err


def test_a_search_without_optuna_says_what_to_install(
    home: Path, headrace: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home / "one")
    monkeypatch.setitem(sys.modules, "optuna", None)
    ended = headrace(*shlex.split(SHARING[0])[1:])
    assert ended.code == 2
    assert "pip install 'headrace[optuna]'" in ended.err


def test_the_study_of_another_file_and_other_data_are_refused(
    home: Path, headrace: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = shlex.split(SHARING[0].replace(" /shared", f" {home}"))[1:]
    monkeypatch.chdir(home / "one")
    assert headrace(*words).code == 0
    monkeypatch.chdir(home / "two")
    path = home / "two" / "experiment.toml"
    path.write_text(path.read_text().replace("arms = 6", "arms = 5"))
    ended = headrace(*words)
    assert ended.code == 2
    assert "got another one named rates" in ended.err
    monkeypatch.chdir(home / "three")
    table = pyarrow.parquet.read_table("log/rows.parquet")
    pyarrow.parquet.write_table(table.slice(1), "log/rows.parquet", row_group_size=1000)
    ended = headrace(*words)
    assert ended.code == 2
    assert "[OtherData]" in ended.err


def test_storage_without_data_is_refused(home: Path, headrace: Commands) -> None:
    arguments = "experiment", "run", str(home / "one" / "experiment.toml"), "--to", str(home)
    ended = headrace(*arguments, "--storage", "search.journal")
    assert ended.code == 2
    assert "expected --data or --archive" in ended.err
