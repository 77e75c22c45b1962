"""The rules of CONTRIBUTING.md that a machine can hold."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("ingest", "pserver", "learner", "serving", "deploy")
SOURCES = sorted(path for part in PARTS for path in (ROOT / part).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
MOST_LINES_OF_A_FILE = 400
MOST_LINES_OF_A_FUNCTION = 70
NAMES_THAT_SAY_NOTHING = {"utils", "util", "common", "helpers", "helper", "manager", "base", "misc"}


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_a_file_opens_with_its_story_and_can_be_read_in_one_sitting(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= MOST_LINES_OF_A_FILE
    if text.strip():
        assert ast.get_docstring(ast.parse(text)), "no module docstring"


@pytest.mark.parametrize("path", [*SOURCES, *TESTS], ids=_name)
def test_a_function_fits_on_a_screen(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            assert lines <= MOST_LINES_OF_A_FUNCTION, f"{node.name} has {lines} lines"


@pytest.mark.parametrize("path", [*SOURCES, *TESTS], ids=_name)
def test_a_file_is_named_after_what_it_does(path: Path) -> None:
    assert path.stem not in NAMES_THAT_SAY_NOTHING


def test_everything_public_says_what_it_is_for() -> None:
    silent = []
    for path in SOURCES:
        for node in ast.parse(path.read_text()).body:
            public = isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_"
            if public and not ast.get_docstring(node):  # type: ignore[arg-type]
                silent.append(f"{_name(path)}: {node.name}")  # type: ignore[attr-defined]
    assert silent == []


def test_imports_keep_the_order_of_the_architecture() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_no_address_of_a_package_registry_stands_in_the_repository() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    hosts = re.compile(r"pypi\.|pythonhosted\.|repo1?\.maven|registry\.npm|crates\.io|--index-url")
    here = _name(Path(__file__))
    found = []
    for name in tracked:
        path = ROOT / name
        if name != here and path.is_file() and hosts.search(path.read_text(errors="replace")):
            found.append(name)
    assert found == []
