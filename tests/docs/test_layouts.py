"""docs/guides/layouts.md is true: its layouts parse, its commands exist, and it has every key."""

from __future__ import annotations

import re

import pytest

from headrace.ingest.logs.layout import ClickLayout, EventLayout, FileLayout, parse_layout
from tests.docs.pages import DOCS, blocks, command_of, commands

PAGE = (DOCS / "guides" / "layouts.md").read_text()
SECTIONS = {"file": FileLayout, "event": EventLayout, "click": ClickLayout}
ROWS = re.findall(r"^\| (?:`\[(\w+)\]`)? ?\| `(\w+)` \| (.*?) \|", PAGE, re.MULTILINE)


def keys() -> list[tuple[str, str, str]]:
    """Section, key and default of each row of the table."""
    rows, current = [], ""
    for section, key, default in ROWS:
        current = section or current
        rows.append((current, key, default))
    return rows


@pytest.mark.parametrize("text", blocks(PAGE, "toml"))
def test_a_layout_of_the_page_parses(text: str) -> None:
    parse_layout(text, "layout.toml")


def test_the_table_has_every_key_of_a_layout() -> None:
    every = [(name, key) for name, each in SECTIONS.items() for key in each.__struct_fields__]
    assert [(section, key) for section, key, _ in keys()] == every


@pytest.mark.parametrize(("section", "key", "default"), keys())
def test_a_default_that_the_table_quotes_is_the_one_of_the_layout(
    section: str, key: str, default: str
) -> None:
    if not (quoted := re.fullmatch(r"`(.*)`", default)):
        return
    own = SECTIONS[section]()
    assert getattr(own, key) == eval(quoted[1])


@pytest.mark.parametrize("command", commands(PAGE))
def test_a_command_of_the_page_is_one_of_headrace(command: str) -> None:
    options, words = command_of(command)
    assert {word for word in words if word.startswith("--")} <= options
