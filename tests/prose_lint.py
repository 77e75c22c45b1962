"""Finds habits of language that CONTRIBUTING.md rules out.

`python -m tests.prose_lint PATH...` prints each as file:line: habit: the words around it.

It reads Markdown outside of code, and Python's docstrings, comments and messages. Messages are the
string literals of more than one word. It also reads the lines of HTML, the comments of TOML, YAML
and Lua, and the summaries of alerts. The list holds phrases that a machine can tell apart from good
English. It cannot judge a sentence, so a page without findings may still be hard to read.
"""

import argparse
import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

STRING_OR_COMMENT = re.compile(
    r'"{3}(?:\\.|[^\\])*?"{3}'
    r"|'{3}(?:\\.|[^\\])*?'{3}"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'(?:\\.|[^'\\\n])*'"
    r"|(?P<comment>#[^\n]*)",
    re.DOTALL,
)
"""What may hold a number sign. Ten times as fast as `tokenize`, which is written in Python."""

HABITS = {
    "'whoever' as a subject": r"\b(?i:who(?:m|so)?ever)\b",
    "'whatever' as a subject": r"\b[Ww]hatever (?!the |its |their |happens\b|order\b)",
    "'nobody' or 'somebody'": r"\b(?i:nobody|somebody)\b",
    "'told'": r"\b(?:is|are|was|were|be|been|being|gets?) told\b|\btold of\b",
    "'is none' for missing, empty or NaN": r"\b(?:is|are|was|were|be|been) none\b",
    "a sentence that begins with 'Of ... ,'": r"(?:^|[.!?:] )Of (?!course\b)[^.;:!?]*,",
    "a clause as the subject": r"(?:^|[.!?] )(?:Who|What|Whom|That which) [^.!?]{20,}\.(?:\s|$)",
    "'lies' or 'stands' for 'is'": (
        r"\b(?:lies|stands)\b(?! for\b)|\b(?:lie|stand)\b(?! for\b| in for\b|-)"
    ),
    "'hangs on' for 'depends on'": r"\bhangs? on\b",
    "'one's own'": r"\bone's own\b",
}
PATTERNS = {habit: re.compile(pattern) for habit, pattern in HABITS.items()}
NOUN_CLAUSE = re.compile(r"(?:What|How|Where|Who|Whose) ")
NOUN_CLAUSE_HABIT = "a docstring that begins with a noun clause"
RIDDLE = re.compile(r"test_(?:it|its|so|they|their|who|what|that|this|those|these|such|one)_")
RIDDLE_HABIT = "a test name that needs its file to be understood"


class Text(NamedTuple):
    """A piece of prose, and the line of its file at which it begins."""

    line: int
    words: str
    docstring: bool = False


class Finding(NamedTuple):
    """A habit, and where it was found."""

    path: Path
    line: int
    habit: str
    excerpt: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.habit}: {self.excerpt}"


def markdown_texts(source: str) -> Iterator[Text]:
    """The paragraphs, headings, list items and table cells of a page, without code."""
    kept: list[str] = []
    begun = 0
    fenced = False
    for number, line in enumerate(source.splitlines(), start=1):
        bare = line.strip()
        if bare.startswith("```"):
            fenced = not fenced
        code = fenced or bare.startswith("```") or (not kept and line.startswith("    "))
        ends = code or not bare or bare.startswith(("|", "#", "- ", "* ", "1. ")) or bare == "---"
        if ends and kept:
            yield Text(begun, _prose(" ".join(kept)))
            kept = []
        if code or not bare:
            continue
        if bare.startswith("|"):
            yield from (Text(number, _prose(cell)) for cell in bare.split("|") if cell.strip())
        elif bare.startswith("#"):
            yield Text(number, _prose(bare.lstrip("# ")))
        else:
            begun = begun if kept else number
            kept.append(re.sub(r"^(?:[-*]|\d+\.) ", "", bare))
    if kept:
        yield Text(begun, _prose(" ".join(kept)))


def _prose(text: str) -> str:
    """A text whose code, link targets and emphasis are gone."""
    text = re.sub(r"`+[^`]*`+", "CODE", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return re.sub(r"[*_\[\]]{1,2}", "", text).strip()


def python_texts(source: str) -> Iterator[Text]:
    """The docstrings, comments and messages of a module."""
    yield from _strings(list(ast.walk(ast.parse(source))))
    yield from _comments(source)


def _strings(nodes: list[ast.AST]) -> Iterator[Text]:
    """The docstrings and messages among the nodes of a module."""
    docstrings = {
        id(node.value)
        for node in nodes
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in nodes:
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        docstring = id(node) in docstrings
        if docstring:
            yield from _paragraphs(node.lineno, node.value)
        elif " " in node.value.strip():
            yield Text(node.lineno, _prose(" ".join(node.value.split())))


def _paragraphs(line: int, docstring: str) -> Iterator[Text]:
    for index, found in enumerate(re.finditer(r"(?:.+\n?)+", docstring)):
        at = line + docstring[: found.start()].count("\n")
        yield Text(at, _prose(" ".join(found.group().split())), docstring=index == 0)


def _comments(source: str) -> Iterator[Text]:
    """Comments, those of consecutive lines as one."""
    run: list[tuple[int, int, str]] = []
    line, counted = 1, 0
    for found in STRING_OR_COMMENT.finditer(source):
        if not found["comment"]:
            continue
        begun = found.start()
        line, counted = line + source.count("\n", counted, begun), begun
        column = begun - source.rfind("\n", 0, begun)
        if run and (line > run[-1][0] + 1 or column != run[-1][1]):
            yield _joined(run)
            run = []
        run.append((line, column, found["comment"]))
    if run:
        yield _joined(run)


def _joined(run: list[tuple[int, int, str]]) -> Text:
    words = " ".join(comment.lstrip("#: ") for _, _, comment in run)
    return Text(run[0][0], _prose(words))


def marked_texts(source: str, mark: str) -> Iterator[Text]:
    """The comments of a file whose comments begin with this mark; summaries of alerts, too."""
    for number, line in enumerate(source.splitlines(), start=1):
        before, found, comment = line.partition(mark)
        summary = re.match(r'\s+summary: "(.*)"$', line)
        if summary:
            yield Text(number, _prose(summary[1]))
        elif found and before.count('"') % 2 == 0:
            yield Text(number, _prose(comment.strip(mark + " ")))


def html_texts(source: str) -> Iterator[Text]:
    """The lines of a page without their tags; the texts in its script are among them."""
    for number, line in enumerate(source.splitlines(), start=1):
        text = re.sub(r"<[^>]*>", " ", line).strip()
        if " " in text:
            yield Text(number, _prose(text))


READERS: dict[str, Callable[[str], Iterator[Text]]] = {
    ".md": markdown_texts,
    ".py": python_texts,
    ".html": html_texts,
    ".toml": lambda source: marked_texts(source, "#"),
    ".yml": lambda source: marked_texts(source, "#"),
    ".lua": lambda source: marked_texts(source, "--"),
}


def find(path: Path) -> list[Finding]:
    """The habits in one file."""
    source = path.read_text()
    if path.suffix != ".py":
        return sorted(_habits(path, READERS[path.suffix](source)))
    nodes = list(ast.walk(ast.parse(source)))
    found = [*_habits(path, _strings(nodes)), *_habits(path, _comments(source))]
    found += [
        Finding(path, node.lineno, RIDDLE_HABIT, node.name)
        for node in nodes
        if isinstance(node, ast.FunctionDef) and RIDDLE.match(node.name)
    ]
    return sorted(found)


def _habits(path: Path, texts: Iterable[Text]) -> Iterator[Finding]:
    for text in texts:
        words = text.words
        if text.docstring and NOUN_CLAUSE.match(words):
            yield Finding(path, text.line, NOUN_CLAUSE_HABIT, words[:70])
            words = words.partition(". ")[2]
        for habit, pattern in PATTERNS.items():
            for match in pattern.finditer(words):
                excerpt = words[max(0, match.start() - 30) : match.start() + 50]
                yield Finding(path, text.line, habit, excerpt)


def files(paths: Iterable[Path]) -> Iterator[Path]:
    """The files below these paths that the lint can read, symbolic links left out."""
    for path in paths:
        below = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (
            each
            for each in below
            if each.suffix in READERS and each.is_file() and not each.is_symlink()
        )


def main() -> int:
    """Prints the findings of the paths that it is given; 1 if there are any."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH")
    found = [each for path in files(parser.parse_args().paths) for each in find(path)]
    for each in found:
        print(each)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
