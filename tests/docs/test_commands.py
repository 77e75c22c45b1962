"""The headrace commands of every page that is written by hand exist, with their options."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, command_of, commands
from tests.docs.walk import EXAMPLES, ROOT

PAGES = [
    ROOT / "README.md",
    *(path for path in sorted(DOCS.rglob("*.md")) if path.parent.name != "reference"),
    *sorted(EXAMPLES.rglob("README.md")),
]


@pytest.mark.parametrize("path", [path for path in PAGES if commands(path.read_text())], ids=str)
def test_the_commands_of_a_page_exist_with_their_options(path: Path) -> None:
    for line in commands(path.read_text()):
        options, words = command_of(line.removesuffix(" &"))
        used = {word.partition("=")[0] for word in words if re.match("--?[a-z]", word)}
        assert used <= options, line
