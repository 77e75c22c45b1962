"""ARCHITECTURE.md is true: the files that it names exist, and its tree shows every folder."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS

ROOT = DOCS.parent
PARTS = ("headrace/runtime", "ingest", "pserver", "learner", "serving", "deploy")
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
PATHS = [f"/{path.relative_to(ROOT)}" for part in PARTS for path in (ROOT / part).rglob("*")]
NAMED = sorted(
    set(re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.(?:py|lua))?|(?:[a-z_]+/)+[a-z_]+)`", PAGE))
)


@pytest.mark.parametrize("name", NAMED)
def test_a_path_of_the_page_exists(name: str) -> None:
    if not (ROOT / name).exists():
        assert any(path.endswith(f"/{name.rstrip('/')}") for path in PATHS)


def test_the_tree_shows_every_folder_of_the_product() -> None:
    folders = {
        path
        for part in PARTS
        for path in (ROOT / part).rglob("*")
        if path.name != "__pycache__" and any(each.is_file() for each in path.glob("[!_]*.*"))
    }
    shown = [
        line.strip().split()[0] for line in PAGE.splitlines() if re.match(r" {4}\s*\w+/ ", line)
    ]
    assert sorted(shown) == sorted(
        [f"{path.name}/" for path in folders]
        + [f"{Path(part).name}/" for part in (*PARTS, "headrace", "docs", "tests")]
    )


def test_the_glossary_is_in_alphabetical_order() -> None:
    glossary = PAGE.partition("## Glossary")[2].partition("\n## ")[0]
    terms = re.findall(r"^\| ([a-z -]+) \|", glossary, re.MULTILINE)[1:]
    assert len(terms) > 30
    assert terms == sorted(terms)
