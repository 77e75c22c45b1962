"""Lists the sections and keys of a layout, from the structs that parse it."""

import json
from collections.abc import Iterator

import msgspec

from headrace.ingest.logs.layout import BagLayout, ClickLayout, EventLayout, FileLayout
from headrace.learner.spec.schema import attribute_docstrings

HEAD = """# Layout

A layout is a TOML file that maps the columns of a CSV, Parquet or NDJSON file to events.
[Your own data](../guides/own_data.md) explains how to use one, and `headrace check DATA` shows the
result. `--layout auto` guesses a layout and prints it. The layouts `criteo` and `avazu` are
included.

Only `[event]` is required, with either `timestamp` or `start`.

An empty text is an absent value in every format. Leave such fields out of events and requests, too.
Messages name a row of a CSV or NDJSON file by its line in the file. The first line is 1, the header
and empty lines count, and a value with line breaks counts as one line. In Parquet, they name the
number of the row, and the first row is 1. A line of a CSV with fewer or more columns than the
header is refused.
"""
FIELDS = """
## `[fields]`

Event fields and the columns that they are read from. Without this section, every column that the
layout does not name elsewhere becomes a field of the same name.

```toml
[event]
timestamp = "time"
[fields]
article = "item"
tags = { column = "labels", separator = "|" }
```

A table instead of a name makes a field of several values:
"""
_KEYS = "\n| key | default | |\n|---|---|---|\n"


def page() -> str:
    """Return the page of keys."""
    parts = [HEAD]
    for name, section in (("file", FileLayout), ("event", EventLayout), ("click", ClickLayout)):
        parts += [f"\n## `[{name}]`\n\n{section.__doc__}\n{_KEYS}", *_rows(section)]
    return "".join([*parts, FIELDS, _KEYS, *_rows(BagLayout)])


def _rows(section: type[msgspec.Struct]) -> Iterator[str]:
    meanings = attribute_docstrings(section)
    for each in msgspec.structs.fields(section):
        given = each.default if each.default_factory is msgspec.NODEFAULT else []
        default = "required" if given is msgspec.NODEFAULT else f"`{json.dumps(given)}`"
        shown = "" if given is None else default
        yield f"| `{each.name}` | {shown} | {meanings[each.name]} |\n"
