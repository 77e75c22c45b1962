"""The rules of CONTRIBUTING.md that a machine can hold."""

import ast
import functools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("headrace/runtime", "ingest", "pserver", "learner", "serving", "deploy")
SOURCES = sorted(path for part in PARTS for path in (ROOT / part).rglob("*.py"))
PACKAGE = sorted((ROOT / "headrace").glob("*.py"))
"""Files beside the links to the parts."""
TESTS = sorted((ROOT / "tests").rglob("*.py"))
MOST_LINES_OF_A_FILE = 700
MOST_LINES_OF_A_FUNCTION = 70
NAMES_THAT_SAY_NOTHING = {"utils", "util", "common", "helpers", "helper", "manager", "base", "misc"}
MOST_ENTRIES_OF_A_FOLDER = 16


def _tracked() -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return [name for name in result.stdout.split() if (ROOT / name).is_file()]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


class Facts(NamedTuple):
    """The part of a module that the rules look at; a tree of syntax kept per file fills memory."""

    docstring: str | None
    lines: int
    functions: list[tuple[str, int]]
    """Names and lines of all functions, nested ones too."""

    imports: list[str]
    public: list[ast.FunctionDef | ast.ClassDef]
    """Public classes and functions of the module itself."""


@functools.cache
def _facts(path: Path) -> Facts:
    source = path.read_text()
    tree = ast.parse(source)
    facts = Facts(ast.get_docstring(tree), len(source.splitlines()), [], [], [])
    for node in _statements(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            facts.functions.append((node.name, node.end_lineno - node.lineno + 1))
        elif isinstance(node, ast.Import):
            facts.imports.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            facts.imports.append(node.module or "")
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_":
            facts.public.append(node)
    return facts


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All statements below a node, without a walk through their expressions."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        children = getattr(tree, field, ())
        for child in children if isinstance(children, list) else ():
            yield child
            yield from _statements(child)


# a test of all files, not one test a file: 2,900 tests cost more than what they look at
def test_a_file_opens_with_its_story_and_can_be_read_in_one_sitting() -> None:
    facts = {_name(path): _facts(path) for path in [*PACKAGE, *SOURCES, *TESTS]}
    assert [name for name, fact in facts.items() if fact.lines > MOST_LINES_OF_A_FILE] == []
    silent = [name for name, fact in facts.items() if fact.lines and not fact.docstring]
    assert silent == [], "no module docstring"


def test_the_docstring_of_a_folder_names_only_what_is_there() -> None:
    wrong = []
    for path in SOURCES:
        story = _facts(path).docstring or ""
        if path.name != "__init__.py":
            continue
        there = {each.name for each in path.parent.iterdir()}
        there |= {name.partition(".")[0] for name in there}
        files = sorted(path.parent.glob("*.py"))
        there |= {node.name for each in files for node in _facts(each).public}
        # a topic of Kafka or the command itself, not a file
        story = re.sub(r"(topic|commands of) `[a-z]+`", "", story)
        named = re.findall(r"`([a-z_]+(?:\.py)?)/?`", story)
        wrong += [f"{_name(path)}: {name}" for name in named if name not in there]
    assert wrong == [], "expected files of the folder, or their public names"


def test_the_docstring_of_a_folder_names_each_of_its_files_and_folders() -> None:
    missing = []
    for path in SOURCES:
        if path.name != "__init__.py":
            continue
        named = set(re.findall(r"\w+", _facts(path).docstring or ""))
        folder = path.parent
        there = {each.stem for each in folder.glob("*.py")}
        there |= {each.parent.name for each in folder.glob("*/__init__.py")}
        there -= {"__init__", "errors"}  # each part has errors
        missing += [f"{_name(folder)}: {each}" for each in sorted(there - named)]
    assert missing == [], "a reader finds a file by the docstring of its folder"


def test_a_function_fits_on_a_screen() -> None:
    long = [
        f"{_name(path)}: {name} has {lines} lines"
        for path in [*PACKAGE, *SOURCES, *TESTS]
        for name, lines in _facts(path).functions
        if lines > MOST_LINES_OF_A_FUNCTION
    ]
    assert long == []


def test_a_file_is_named_after_what_it_does() -> None:
    names = [_name(path) for path in [*SOURCES, *TESTS] if path.stem in NAMES_THAT_SAY_NOTHING]
    assert names == []


def test_everything_public_says_what_it_is_for() -> None:
    silent = [
        f"{_name(path)}: {node.name}"
        for path in SOURCES
        for node in _facts(path).public
        if not ast.get_docstring(node)
    ]
    assert silent == []


def test_imports_keep_the_order_of_the_architecture() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_imports_use_the_one_name_that_the_wheel_ships() -> None:
    bare = [
        f"{_name(path)}: {name}"
        for path in [*SOURCES, *TESTS]
        for name in _facts(path).imports
        if name.partition(".")[0] in PARTS[1:]
    ]
    assert bare == [], "import headrace.… instead"


def test_a_test_file_imports_no_other_test_file() -> None:
    other = re.compile(r"tests[\w.]*\.test_\w+")
    found = [
        f"{_name(path)}: {name}"
        for path in TESTS
        for name in _facts(path).imports
        if other.fullmatch(name)
    ]
    assert found == []


def test_documents_name_no_package_without_headrace() -> None:
    bare = re.compile(
        rf"(?:from|import) (?:{'|'.join(PARTS[1:])})\b|-m (?:{'|'.join(PARTS[1:])})\."
    )
    found = [
        f"{name}: {line}"
        for name in _tracked()
        if name.endswith((".md", ".ipynb", ".toml", ".sh"))
        for line in (ROOT / name).read_text().splitlines()
        if bare.search(line)
    ]
    assert found == []


def _incomplete(handled: ast.Try) -> bool:
    """Whether handlers name some of the errors of a decoder of msgspec, and not all."""
    named = " ".join(ast.unparse(each.type) for each in handled.handlers if each.type)
    if "msgspec.DecodeError" in named or "msgspec.MsgspecError" in named:
        return True
    converts = any("msgspec.convert" in ast.unparse(each) for each in handled.body)
    return "msgspec.ValidationError" in named and "UNDECODABLE" not in named and not converts


def test_a_handler_of_bytes_that_msgspec_cannot_decode_names_all_its_errors() -> None:
    found = [
        f"{_name(path)}:{node.lineno}"
        for path in SOURCES
        if "msgspec." in (source := path.read_text()) and "except" in source
        for node in _statements(ast.parse(source))
        if isinstance(node, ast.Try) and _incomplete(node)
    ]
    assert found == [], "except UNDECODABLE instead"


def test_digests_of_secrets_are_compared_in_constant_time() -> None:
    equal = re.compile(r"(digest|given|secret)\w* *[!=]= |[!=]= *(self\._)?(digest|given|secret)")
    found = [
        f"{_name(path)}: {line.strip()}"
        for path in (ROOT / "headrace/runtime/http").glob("*tokens.py")
        for line in path.read_text().splitlines()
        if equal.search(line)
    ]
    assert found == [], "hmac.compare_digest instead"


def test_pickles_are_read_only_from_headrace_itself_and_from_folders_that_the_guide_names() -> None:
    reading = re.compile(r"pickle\.loads?\(|Unpickler|torch\.load\(|allow_pickle=True|joblib\.load")
    found = {str(path.relative_to(ROOT)) for path in SOURCES if reading.search(path.read_text())}
    of_itself = {
        "learner/batch/store_fit/partition_tasks.py",
        "learner/models/deep/device_group.py",
        "serving/workers/process_pool.py",
    }
    of_folders = {
        "headrace/runtime/kernels/kernel_cache.py",
        "learner/experiments/executors/arm_task.py",
        "learner/experiments/executors/staged_log.py",
        "learner/experiments/run_folder.py",
    }
    assert found == of_itself | of_folders
    guide = (ROOT / "docs/guides/operating.md").read_text()
    named = guide.partition("### Folders that run code\n")[2].partition("\n## ")[0]
    assert "`NUMBA_CACHE_DIR`" in named and "`headrace experiment run`" in named


def test_a_public_class_name_is_unique_in_the_product() -> None:
    names = Counter(
        node.name
        for path in SOURCES
        for node in _facts(path).public
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("part", PARTS)
def test_no_two_files_of_a_part_share_a_name(part: str) -> None:
    names = Counter(path.name for path in (ROOT / part).rglob("*.py"))
    del names["__init__.py"]
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("part", PARTS)
def test_a_folder_is_read_at_a_glance(part: str) -> None:
    for folder in {path.parent for path in SOURCES if path.is_relative_to(ROOT / part)}:
        entries = [path.name for path in folder.iterdir() if path.name[:2] != "__"]
        assert len(entries) <= MOST_ENTRIES_OF_A_FOLDER, f"{_name(folder)}: {sorted(entries)}"


def test_a_folder_has_its_story_and_no_second_address_of_what_its_files_define() -> None:
    assert sorted(_name(path) for path in ROOT.glob("[a-z]*/**/*.pyi")) == []
    found = [
        _name(path)
        for path in SOURCES
        if path.name == "__init__.py" and len(ast.parse(path.read_text()).body) > 1
    ]
    assert found == ["learner/models/deep/__init__.py"], "names that modules of users import"


def test_no_address_of_a_package_registry_stands_in_the_repository() -> None:
    hosts = re.compile(r"pypi\.|pythonhosted\.|repo1?\.maven|registry\.npm|crates\.io|--index-url")
    here = _name(Path(__file__))
    found = []
    for name in _tracked():
        path = ROOT / name
        if name != here and path.is_file() and hosts.search(path.read_text(errors="replace")):
            found.append(name)
    assert found == []
