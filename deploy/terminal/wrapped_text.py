"""Wraps text at the width of a terminal.

A long line that the terminal itself wraps is hard to read, because it breaks within words. A line
for a pipe or a file is never wrapped, so that `grep` finds it whole. Commands and values to copy
are never broken: those in backticks or quotes, and paths and URLs, which have no spaces.
"""

import os
import re
import textwrap
from typing import TextIO

CONTINUED = "  "
"""Indentation of the lines that continue a line, in addition to its own."""

_WHOLE = re.compile(r"`[^`]+`|(?<!\w)'[^']+'(?!\w)|(?<!\w)\"[^\"]+\"(?!\w)")
_SPACE, _KEPT = " ", "\0"
_LEAST_COLUMNS = 20


def columns_of(stream: TextIO) -> int | None:
    """Return the width of the terminal of a stream; None if it is a pipe or a file."""
    if not stream.isatty():
        return None
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except OSError:
        return None
    # a terminal that has no size, such as that of a container, says 0
    return columns if columns >= _LEAST_COLUMNS else None


def wrapped(text: str, columns: int | None) -> str:
    """Return a text whose lines have at most `columns` characters, if words allow it.

    columns: None wraps nothing.
    """
    if columns is None:
        return text
    return "\n".join(_wrapped_line(line, columns) for line in text.split("\n"))


def _wrapped_line(line: str, columns: int) -> str:
    if len(line) <= columns:
        return line
    words = line.lstrip(_SPACE)
    own = line[: len(line) - len(words)]
    kept = _WHOLE.sub(lambda found: found[0].replace(_SPACE, _KEPT), words)
    lines = textwrap.fill(
        kept,
        columns,
        initial_indent=own,
        subsequent_indent=own + CONTINUED,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
        expand_tabs=False,
    )
    return lines.replace(_KEPT, _SPACE)
