"""The text of a model spec, and errors that name the line at fault.

The TOML parser does not report the position of a key. `line_of` finds it by parsing the text line
by line: a key is defined by the first statement after which the text so far has that key. This is
quadratic in the lines of a spec, and it happens only for an error. *Refused:* a second parser with
rules of its own.
"""

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path


class SpecError(ValueError):
    """An invalid model spec: file and line, the expected value, the value found."""


class SpecText:
    """The text of a spec, parsed once and searched for the line of an error."""

    def __init__(self, path: Path | str, text: str) -> None:
        self.path = str(path)
        self.text = text.removeprefix("\ufeff")  # an editor of Windows writes it

    def tables(self) -> dict[str, object]:
        """Return the parsed TOML. Raises SpecError if the text is not TOML."""
        try:
            return tomllib.loads(self.text)
        except (ValueError, RecursionError) as error:  # ValueError: a number of 4,300 digits, too
            place = re.search(r"\(at line (\d+)", str(error))
            line = int(place.group(1)) if place else self.text.count("\n") + 1
            raise SpecError(f"{self.path}:{line}: expected TOML, found: {error}") from error

    def line_of(self, *keys: str) -> int:
        """Return the line, from 1, on which the statement defining `keys` begins.

        For a missing key, the line of the innermost table around it that exists.
        """
        lines = self.text.splitlines()
        found, depth = 1, 0
        begin = 0
        for end in range(1, len(lines) + 1):
            outside = begin == end - 1
            if outside and not lines[begin].partition("#")[0].strip():
                begin = end  # blank or a comment: it defines nothing
                continue
            try:
                tables = tomllib.loads("\n".join(lines[:end]))
            except (ValueError, RecursionError):
                continue  # inside a value of several lines
            reached = _depth(tables, keys)
            if reached > depth:
                found, depth = begin + 1, reached
            begin = end
        return found

    def error(self, keys: Iterable[str], expected: str, found: str) -> SpecError:
        """Return the error to raise about the value at `keys`."""
        return SpecError(f"{self.path}:{self.line_of(*keys)}: expected {expected}, found {found}")


def toml_text(text: str) -> str:
    """Return a text as a value of TOML, whatever its characters."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def one_of(known: Iterable[str], found: str) -> str:
    """Return the known names as text, with the one most like `found`."""
    names = sorted(known)
    if not names:
        return "but the spec has none"
    near = difflib.get_close_matches(found, names, n=1)
    meant = f' (did you mean "{near[0]}"?)' if near else ""
    return f"one of {', '.join(names)}{meant}"


def found_name(name: str, kinds: Mapping[str, str]) -> str:
    """Return a name as the found value of an error, with its kind: "tags", a field of ..."""
    if not name:
        return '""'
    return f'"{name}", {kinds.get(name, "an unknown name")}'


def _depth(tables: object, keys: tuple[str, ...]) -> int:
    for depth, key in enumerate(keys):
        if not isinstance(tables, dict) or key not in tables:
            return depth
        tables = tables[key]
    return len(keys)
