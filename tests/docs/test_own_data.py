"""docs/guides/own_data.md is true: its layouts parse, and its commands exist."""

from __future__ import annotations

import pytest

from headrace.ingest.logs.layout import parse_layout
from tests.docs.pages import DOCS, blocks, command_of, commands

PAGE = (DOCS / "guides" / "own_data.md").read_text()


@pytest.mark.parametrize("text", blocks(PAGE, "toml"))
def test_a_layout_of_the_page_parses(text: str) -> None:
    parse_layout(text, "layout.toml")


@pytest.mark.parametrize("command", commands(PAGE))
def test_a_command_of_the_page_is_one_of_headrace(command: str) -> None:
    options, words = command_of(command)
    assert {word for word in words if word.startswith("--")} <= options
