"""The rules of CONTRIBUTING.md that a machine can hold."""

import ast
import importlib
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("ingest", "pserver", "learner", "serving", "deploy")
SOURCES = sorted(path for part in PARTS for path in (ROOT / part).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
MOST_LINES_OF_A_FILE = 400
MOST_LINES_OF_A_FUNCTION = 70
NAMES_THAT_SAY_NOTHING = {"utils", "util", "common", "helpers", "helper", "manager", "base", "misc"}


MOST_ENTRIES_OF_A_FOLDER = 16


def _tracked() -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return [name for name in result.stdout.split() if (ROOT / name).is_file()]


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


@pytest.mark.parametrize("path", [*SOURCES, *TESTS], ids=_name)
def test_imports_use_the_one_name_that_the_wheel_ships(path: Path) -> None:
    bare = []
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        bare += [name for name in names if name.partition(".")[0] in PARTS]
    assert bare == [], "import headrace.… instead"


@pytest.mark.parametrize("path", TESTS, ids=_name)
def test_a_test_file_imports_no_other_test_file(path: Path) -> None:
    others = re.compile(r"^\s*from tests[\w.]*\.test_\w+ import|^\s*import tests[\w.]*\.test_")
    assert [line for line in path.read_text().splitlines() if others.search(line)] == []


def test_documents_name_no_package_without_headrace() -> None:
    bare = re.compile(rf"(?:from|import) (?:{'|'.join(PARTS)})\b|-m (?:{'|'.join(PARTS)})\.")
    found = [
        f"{name}: {line}"
        for name in _tracked()
        if name.endswith((".md", ".ipynb", ".toml", ".sh"))
        for line in (ROOT / name).read_text().splitlines()
        if bare.search(line)
    ]
    assert found == []


def test_a_public_class_name_is_unique_in_the_product() -> None:
    names = Counter(
        node.name
        for path in SOURCES
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name[0] != "_"
    )
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("part", PARTS)
def test_no_two_files_of_a_part_share_a_name(part: str) -> None:
    names = Counter(path.name for path in (ROOT / part).rglob("*.py"))
    del names["__init__.py"]
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("part", PARTS)
def test_a_folder_is_read_at_a_glance(part: str) -> None:
    for folder in {path.parent for path in SOURCES if path.relative_to(ROOT).parts[0] == part}:
        entries = [path.name for path in folder.iterdir() if path.name[:2] != "__"]
        assert len(entries) <= MOST_ENTRIES_OF_A_FOLDER, f"{_name(folder)}: {sorted(entries)}"


def test_other_folders_import_a_folder_through_its_facade() -> None:
    graph = grimp.build_graph("headrace")
    past = []
    for importer in graph.modules:
        home = importer if graph.find_children(importer) else importer.rpartition(".")[0]
        for imported in graph.find_modules_directly_imported_by(importer):
            folder = imported if graph.find_children(imported) else imported.rpartition(".")[0]
            if importer == "headrace.__main__":
                continue
            if folder != imported and not f"{home}.".startswith(f"{folder}."):
                past.append(f"{importer} -> {imported}")
    assert sorted(past) == []


FACADES = sorted(ROOT.glob("[a-z]*/**/__init__.pyi"))


@pytest.mark.parametrize("path", FACADES, ids=_name)
def test_a_facade_exports_what_it_lists(path: Path) -> None:
    folder = path.parent.relative_to(ROOT)
    parts = folder.parts if folder.parts[0] == "headrace" else ("headrace", *folder.parts)
    package = importlib.import_module(".".join(parts))
    listed = [
        alias.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert sorted(package.__all__) == sorted(listed)
    modules = {each.stem for each in path.parent.iterdir()}
    assert not modules & set(listed), "a module of that name would hide what is exported"
    for name in listed:
        getattr(package, name)


def test_no_address_of_a_package_registry_stands_in_the_repository() -> None:
    hosts = re.compile(r"pypi\.|pythonhosted\.|repo1?\.maven|registry\.npm|crates\.io|--index-url")
    here = _name(Path(__file__))
    found = []
    for name in _tracked():
        path = ROOT / name
        if name != here and path.is_file() and hosts.search(path.read_text(errors="replace")):
            found.append(name)
    assert found == []
