"""docs/guides/batch.md is true: its code prints what it shows, and its commands exist."""

from __future__ import annotations

import contextlib
import io

import pytest

from tests.docs.pages import DOCS, blocks, command_of, commands

PAGE = (DOCS / "guides" / "batch.md").read_text()


def test_the_code_of_the_page_prints_what_it_shows() -> None:
    [code], [shown] = blocks(PAGE, "python"), blocks(PAGE, "text")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    assert printed.getvalue() == shown


@pytest.mark.parametrize("line", commands(PAGE))
def test_a_command_of_the_page_exists_with_its_options(line: str) -> None:
    options, words = command_of(line)
    assert {word for word in words if word.startswith("-")} <= options
