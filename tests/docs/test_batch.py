"""docs/guides/batch.md is true: its code prints what it shows."""

import contextlib
import io
import runpy
import shutil
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, blocks

PAGE = (DOCS / "guides" / "batch.md").read_text()


def test_the_code_of_the_page_prints_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [classifier, device, _], [learned, exported] = blocks(PAGE, "python"), blocks(PAGE, "text")
    monkeypatch.chdir(tmp_path)
    assert printed_by(classifier + device) == learned + exported


def test_the_model_of_the_page_learns_the_log_of_the_news_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (DOCS.parent / "examples" / "news_site").glob("*.*"):
        shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["make_log.py", "log.csv"])
    runpy.run_path("make_log.py", run_name="__main__")
    *_, code = blocks(PAGE, "python")
    assert 0.6 < float(printed_by(code)) < 0.8


def printed_by(code: str) -> str:
    """Return what a block of code prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    return printed.getvalue()
