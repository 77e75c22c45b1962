"""Pages, docstrings, comments and messages are free of the habits that prose_lint finds."""

from pathlib import Path

import pytest

from tests.prose_lint import NOUN_CLAUSE_HABIT, RIDDLE_HABIT, files, find

ROOT = Path(__file__).resolve().parents[1]

CLEAN = [
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "docs/benchmarks.md",
    "docs/guides",
    "docs/index.md",
    "docs/reference/spec.md",
    "docs/tutorial.md",
    "examples",
    "serving",
    "ingest",
    "tests/docs",
    "tests/ingest",
    "tests/serving",
    "deploy",
    "headrace",
    "tests/runtime",
    "tests/bench",
    "tests/chaos",
    "tests/conftest.py",
    "tests/deploy",
    "tests/faults",
    "tests/simulation",
    "pserver",
    "tests/pserver",
    "learner",
    "tests/learner",
]
"""Files and folders without findings. Add those that you have rewritten."""


@pytest.mark.parametrize("name", CLEAN)
def test_a_rewritten_part_has_no_habit_of_the_list(name: str) -> None:
    found = [str(each) for path in files([ROOT / name]) for each in find(path)]
    assert found == [], "\n".join(found)


def test_every_name_of_the_list_exists() -> None:
    assert [name for name in CLEAN if not (ROOT / name).exists()] == []


@pytest.mark.parametrize(
    "sentence",
    [
        "Whoever sends events reads this.",
        "It waits for whatever is left.",
        "Then nobody waits for it.",
        "The learner is told of its pushes.",
        "Scores that are none are refused.",
        "Of learners that step together, one may leave.",
        "What it refuses takes the road of a refused push.",
        "The row lies in the table.",
        "That hangs on the id alone.",
    ],
)
@pytest.mark.parametrize("kind", ["markdown", "docstring", "comment", "message"])
def test_the_lint_finds_a_habit_in_every_kind_of_prose(
    tmp_path: Path, sentence: str, kind: str
) -> None:
    written = {
        "markdown": ("page.md", f"# Title\n\n{sentence}\n"),
        "docstring": ("module.py", f'"""A title.\n\n{sentence}\n"""\n'),
        "comment": ("module.py", f"# {sentence}\nX = 1\n"),
        "message": ("module.py", f'X = "{sentence}"\n'),
    }
    name, source = written[kind]
    (tmp_path / name).write_text(source)
    assert len(find(tmp_path / name)) == 1


@pytest.mark.parametrize(
    "sentence",
    [
        "FTRL stands for follow the regularized leader.",
        "Of course, this costs memory.",
        "What does a retry cost?",
        "The field is empty if the value is missing.",
        "`whoever` and `nobody` are words of the lint.",
    ],
)
def test_the_lint_leaves_plain_sentences_alone(tmp_path: Path, sentence: str) -> None:
    (tmp_path / "page.md").write_text(f"{sentence}\n\n```sh\necho whoever lies\n```\n")
    assert find(tmp_path / "page.md") == []


def test_the_lint_finds_noun_clauses_and_test_names_without_a_subject(tmp_path: Path) -> None:
    source = 'def test_so_it_does() -> None:\n    """How it comes to rows."""\n'
    (tmp_path / "module.py").write_text(source)
    assert [each.habit for each in find(tmp_path / "module.py")] == [
        RIDDLE_HABIT,
        NOUN_CLAUSE_HABIT,
    ]
