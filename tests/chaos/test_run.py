"""Ten minutes of chaos: every event counted once, and every part fresh again after each fault."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RATE = 2000
"""As `make chaos`: messages have as many examples as in production, and the batch guard judges."""


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_ten_minutes_of_faults_lose_and_repeat_no_event(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.chaos", "--minutes", "10", "--rate", str(RATE)),
            *("--out", str(tmp_path)),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "0 violations" in done.stdout
    assert (tmp_path / "chaos.html").stat().st_size > 0
