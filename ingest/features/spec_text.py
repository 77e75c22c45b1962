"""The text of a model spec, and errors that name the line at fault.

TOML's parser forgets where a key stood. Rather than parse the text a second time by rules of our
own, `line_of` asks the parser itself: the statement that defines a key is the first one after
which the text so far, parsed alone, has that key. That is quadratic in the lines of a spec, and is
only ever done on the way to an error.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class SpecError(ValueError):
    """A model spec that cannot be used: where, what was expected, what was found."""


class SpecText:
    """A spec as it was written: parsed once, and searched when something in it is wrong."""

    def __init__(self, path: Path | str, text: str) -> None:
        self.path = str(path)
        self.text = text

    def tables(self) -> dict[str, object]:
        """Return the parsed TOML. Raises SpecError where it is not TOML."""
        try:
            return tomllib.loads(self.text)
        except tomllib.TOMLDecodeError as error:
            place = re.search(r"\(at line (\d+)", str(error))
            line = int(place.group(1)) if place else self.text.count("\n") + 1
            raise SpecError(f"{self.path}:{line}: expected TOML, found: {error}") from error

    def line_of(self, *keys: str) -> int:
        """Return the line, from 1, on which the statement defining `keys` begins.

        Where there is no such key (it is missing, say), the line of the nearest table around it.
        """
        lines = self.text.splitlines()
        found, depth = 1, 0
        begin = 0
        for end in range(1, len(lines) + 1):
            try:
                tables = tomllib.loads("\n".join(lines[:end]))
            except tomllib.TOMLDecodeError:
                continue  # inside a value of several lines
            reached = _depth(tables, keys)
            if reached > depth:
                found, depth = begin + 1, reached
            begin = end
        return found

    def error(self, keys: Iterable[str], expected: str, found: str) -> SpecError:
        """Return the error to raise about the value at `keys`."""
        return SpecError(f"{self.path}:{self.line_of(*keys)}: expected {expected}, found {found}")


def one_of(known: Iterable[str], found: str) -> str:
    """Say which names are known, and which of them was perhaps meant."""
    names = sorted(known)
    near = difflib.get_close_matches(found, names, n=1)
    meant = f' (did you mean "{near[0]}"?)' if near else ""
    return f"one of {', '.join(names)}{meant}"


def _depth(tables: object, keys: tuple[str, ...]) -> int:
    for depth, key in enumerate(keys):
        if not isinstance(tables, dict) or key not in tables:
            return depth
        tables = tables[key]
    return len(keys)
