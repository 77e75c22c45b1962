"""Tests `headrace check`, and what `headrace run` refuses before it starts anything."""

import json
import threading
from pathlib import Path

import pytest

from headrace.deploy.errors import BadOption, DeployError
from headrace.deploy.local import log_run
from headrace.deploy.local.log_run import RunSettings, run_log
from headrace.deploy.local.pipeline import PipelineSettings
from headrace.ingest.logs.layout import LogLayout
from headrace.learner.errors import MissingTorch
from headrace.runtime.termination import REFUSED
from tests.deploy.in_process import Commands

T0_MS = 1_700_000_000_000
SPEC = """
[model]
name = "site"
[fields]
user = { number = 1, transform = "id" }
article = { number = 2, transform = "id" }
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "site.toml"
    path.write_text(SPEC)
    return path


@pytest.fixture(autouse=True)
def _nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a pipeline was started")

    monkeypatch.setattr(log_run, "LocalPipeline", refuse)


def csv(tmp_path: Path, *, scale: int = 1) -> Path:
    path = tmp_path / "log.csv"
    rows = [f"{(T0_MS + 1000 * i) // scale},u{i % 3},a{i % 5},{i % 2}" for i in range(50)]
    path.write_text("\n".join(["time,user,article,clicked", *rows]) + "\n")
    return path


def run(spec: Path, data: Path, layout: LogLayout | None = None) -> None:
    settings = RunSettings(PipelineSettings(model=spec), (data,), None, None, False, layout)
    run_log(settings, threading.Event())


def test_check_prints_coverage_and_the_guessed_layout_of_a_csv(
    headrace: Commands, tmp_path: Path, spec: Path
) -> None:
    done = headrace("check", str(csv(tmp_path)), "--model", str(spec))
    assert done.code == 0, done.err
    assert "50 impressions, 25 clicks, 2023-11-14 22:13:20" in done.out
    assert "article  100.0 %" in done.out
    assert "nothing to warn about" in done.out
    assert 'timestamp = "time"\ntimestamp_format = "ms"' in done.err
    assert 'column = "clicked"' in done.err


def test_suggest_warns_of_a_log_without_clicks_where_a_redirected_spec_does_not_hide_it(
    headrace: Commands, tmp_path: Path
) -> None:
    path = tmp_path / "log.csv"
    path.write_text("time,user\n" + "".join(f"{T0_MS + i},u{i % 3}\n" for i in range(9)))
    done = headrace("suggest", str(path))
    assert done.code == 0, done.err
    assert "# warning: No impression has a click. If a column tells clicks, name it" in done.err


def test_check_ends_with_status_2_if_more_than_half_of_a_log_is_refused(
    headrace: Commands, tmp_path: Path, spec: Path
) -> None:
    layout = tmp_path / "layout.toml"
    layout.write_text('[event]\ntimestamp = "time"\n[click]\ncolumn = "clicked"\n')
    data = csv(tmp_path, scale=1000)
    done = headrace("check", str(data), "--model", str(spec), "--layout", str(layout))
    assert done.code == REFUSED
    assert "1700000000 looks like seconds" in done.out
    assert 'timestamp_format = "s"' in done.out
    assert done.err.endswith("as the warnings say. `headrace run` would not start\n")
    as_json = headrace(
        *("check", str(data), "--model", str(spec), "--layout", str(layout), "--json")
    )
    assert as_json.code == REFUSED
    found = json.loads(as_json.out)
    assert found["unusable"]
    assert found["refused"][0]["count"] == 50


def test_a_run_refuses_a_log_that_it_cannot_learn_before_anything_starts(
    tmp_path: Path, spec: Path
) -> None:
    for name in ("impressions", "clicks"):
        (tmp_path / f"{name}.ndjson").touch()
    with pytest.raises(DeployError, match="expected impressions, got none"):
        run(spec, tmp_path)
    lines = [
        json.dumps({"impression_id": f"i{i}", "timestamp_ms": 1_700_000_000}) for i in range(9)
    ]
    (tmp_path / "impressions.ndjson").write_text("\n".join(lines))
    with pytest.raises(DeployError, match=r"looks like seconds(.|\n)*Nothing was started"):
        run(spec, tmp_path)
    with pytest.raises(BadOption, match=r"expected a layout for the file .* --layout auto"):
        run(spec, csv(tmp_path))


def test_a_run_without_torch_refuses_a_deep_model_before_anything_starts(
    tmp_path: Path, spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object) -> None:
        raise MissingTorch("dcn")

    monkeypatch.setattr(log_run, "open_model", missing)
    with pytest.raises(MissingTorch):
        run(spec, csv(tmp_path))
