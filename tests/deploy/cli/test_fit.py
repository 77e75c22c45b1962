"""`headrace fit` as a process: killed, started again, and refused."""

import re
import signal
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet
import pytest

from headrace import LocalModel
from tests.deploy.command import HEADRACE
from tests.deploy.in_process import Commands

pytestmark = pytest.mark.thorough

ROWS, FEW_ROWS = 400_000, 4_000
"""A fit that is killed has to take a while; the others need few rows."""
SPEC = """
[model]
name = "shop"
[fields.user]
number = 1
transform = "id"
[fields.item]
number = 2
transform = "id"
"""
LAYOUT = """
[event]
timestamp = "time"
[click]
column = "clicked"
"""


def written(folder: Path, rows: int) -> Path:
    """Write a spec, a layout and a log; return the folder."""
    dice = np.random.default_rng(1)
    columns = {
        "user": pa.array(dice.integers(0, 100_000, rows)),
        "item": pa.array(dice.integers(0, 1000, rows)),
        "time": pa.array(1_700_000_000_000 + np.arange(rows)),
        "clicked": pa.array((dice.random(rows) < 0.1).astype(int)),
    }
    pyarrow.parquet.write_table(pa.table(columns), folder / "log.parquet")
    (folder / "shop.toml").write_text(SPEC)
    (folder / "layout.toml").write_text(LAYOUT)
    return folder


def command(to: str, *more: str) -> list[str]:
    options = ["--model", "shop.toml", "--layout", "layout.toml", "--data", "log.parquet"]
    return [*HEADRACE, "fit", *options, "--to", to, *more]


def rows_of(folder: Path) -> dict[int, tuple[int, int]]:
    """Shows and clicks of each id of the newest snapshot."""
    model = LocalModel.load(folder)
    rows = model._model._view.everything().existing()
    counts = zip(rows.shows.tolist(), rows.clicks.tolist(), strict=True)
    return dict(zip(rows.ids.tolist(), counts, strict=True))


def test_a_fit_killed_after_it_saved_counts_every_row_once(tmp_path: Path) -> None:
    home = written(tmp_path, ROWS)
    whole = subprocess.run(
        command("whole"), cwd=home, check=True, capture_output=True, text=True, timeout=120
    )
    assert f"{ROWS:,} examples" in whole.stdout
    state = home / "parts" / "_fit" / "shop" / "state.json"
    killed = subprocess.Popen(
        command("parts", "--save-every", "0"), cwd=home, stderr=subprocess.PIPE, text=True
    )
    try:
        while killed.poll() is None and not state.exists():
            pass
    finally:
        killed.send_signal(signal.SIGKILL)
        killed.communicate(timeout=60)
    assert state.exists()
    again = subprocess.run(
        command("parts"), cwd=home, check=True, capture_output=True, text=True, timeout=120
    )
    assert "continuing an unfinished fit" in again.stderr
    assert rows_of(home / "parts") == rows_of(home / "whole")


RATE = '[statistics.rate]\nnumber = 3\nstatistic = "rate"\nof = "item"\n'
HISTORY = """[fields.recent]
number = 3
transform = "history"
of = "user"
item = "item"
last = 5
"""
NO_LOG = ("--data", "log.parquet")
"""A file that is no Parquet, which would be refused first if it were read."""


@pytest.mark.parametrize(
    ("spec", "words", "said"),
    [
        ("", ("--to", "models"), "expected either --data or --archive, got neither"),
        ("", (*NO_LOG, "--to", "file/models"), "[StorageFailed]"),
        (RATE, (*NO_LOG, "--to", "m", "--epochs", "2"),
         "--epochs: expected 1, since the spec has [statistics.*]"),
        (HISTORY, (*NO_LOG, "--to", "m", "--epochs", "2"),
         "--epochs: expected 1, since the spec has a history (recent)"),
        (HISTORY, (*NO_LOG, "--to", "m", "--store", "redis://nowhere"),
         "--store: expected a spec without histories"),
    ],
)  # fmt: skip
def test_a_fit_is_refused_before_any_row_is_read(
    headrace: Commands,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spec: str,
    words: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.toml").write_text(SPEC + spec)
    (tmp_path / "layout.toml").write_text(LAYOUT)
    (tmp_path / "log.parquet").write_bytes(b"no Parquet")
    (tmp_path / "file").write_text("")
    ended = headrace("fit", "--model", "shop.toml", "--layout", "layout.toml", *words)
    assert ended.code == 2
    assert said in ended.err


@pytest.mark.parametrize(
    ("share", "flags", "status"), [(0.25, ["--accept-refused"], 0), (0.25, [], 2), (0.75, [], 2)]
)
def test_refused_lines_are_reported_and_end_a_fit_with_status_2_unless_accepted(
    share: float,
    flags: list[str],
    status: int,
    headrace: Commands,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home = written(tmp_path, FEW_ROWS)
    monkeypatch.chdir(home)
    log = pyarrow.parquet.read_table(home / "log.parquet")
    first = round(share * FEW_ROWS)
    later = pa.compute.multiply(log["time"].slice(0, first), 1000)
    times = pa.chunked_array([*later.chunks, *log["time"].slice(first).chunks])
    pyarrow.parquet.write_table(log.set_column(2, "time", times), home / "log.parquet")
    done = headrace(*command("models", *flags)[len(HEADRACE) :])
    assert done.code == status
    saved = share < 0.5
    assert ("got one without the rows above" in done.err) is (saved and status == 2)
    told = done.out if saved else done.err
    assert f"{first:,} rows are refused: expected timestamp_ms at most a day after" in told
    assert re.search(r"first: .*log\.parquet, row 1: .*\btime=17", told)
    assert "looks like microseconds" in told
    assert bool(list((home / "models").glob("*-shop-*"))) is saved
