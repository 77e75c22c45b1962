"""The wheel, installed into an empty environment, runs the demo far from the sources."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UV = Path(sys.executable).with_name("uv")


def _run(*command: str | Path, cwd: Path, timeout_s: float = 400.0) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL"))}
    result = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert result.returncode == 0, f"{command}:\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.mark.timeout(600)
def test_the_wheel_runs_a_short_demo_in_an_empty_environment(tmp_path: Path) -> None:
    # by way of the source distribution: what an earlier build left in the tree cannot slip in
    _run(UV, "build", "--out-dir", tmp_path / "dist", ROOT, cwd=tmp_path)
    [wheel] = (tmp_path / "dist").glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "headrace/pserver/redis_backend/functions.lua" in names
    assert "headrace/deploy/local/services/kafka_jars.lock" in names
    assert not [name for name in names if name.startswith("tests")]
    venv.create(tmp_path / "empty", with_pip=False)
    python = tmp_path / "empty" / "bin" / "python"
    lock = ROOT / "requirements.lock"
    _run(UV, "pip", "install", "--python", python, "-c", lock, wheel, cwd=tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    command = tmp_path / "empty" / "bin" / "headrace"
    output = _run(command, "demo", "--seconds", "15", "--port", "0", cwd=elsewhere)
    assert "AUC" in output
    assert list(elsewhere.iterdir()) == []
