"""`make image` builds what an engine here can start."""

import shutil

import pytest

from tests.deploy.compose import build, stand_ins


def test_nothing_is_compiled_where_no_docker_engine_could_start_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def compile_for_minutes() -> None:
        pytest.fail("compiled without an engine")

    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(stand_ins, "built", lambda: False)
    monkeypatch.setattr(stand_ins, "build", compile_for_minutes)
    monkeypatch.setattr(build, "_build_compose", compile_for_minutes)
    assert build.main() == 0
    assert "needs dockerd and docker" in capsys.readouterr().out
