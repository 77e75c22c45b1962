"""Lists every command with its options, from the functions of `deploy/cli`."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from headrace.deploy.cli.main import app

HEAD = """# Command line

A flag takes precedence over its environment variable, and the variable over the default. Every
command has `--help`. Give options for logs before the command: `headrace --log-level debug` and
`HEADRACE_LOG_LEVEL` set the verbosity, `--log-format json` and `HEADRACE_LOG_FORMAT` the format.

Exit status 0 means success, and 2 that an operator must act. 75 means that Kafka or the store was
unreachable for too long: run the command again.
"""

SHARED = """The tables of commands do not repeat these options. Below its table, each command names
those that it has.
"""
TABLE = ("\n| option | environment variable | default | |\n|---|---|---|---|\n",)
LEAST_COMMANDS = 3


def page() -> str:
    """Return the page of commands."""
    found = list(_commands("headrace", app))
    shared = _shared(command for _, command in found)
    parts = [HEAD, "\n## Shared options\n\n", SHARED, *TABLE, *sorted(shared)]
    for name, command in found:
        parts.append(f"\n## `{name}`\n\n{_text(command.help)}\n")
        parts += _arguments(command) + _options(command, shared)
    return "".join(parts)


def _shared(commands: Iterable[Any]) -> set[str]:
    """The rows of options that several commands have alike, at most one row for a flag."""
    rows = Counter(row for command in commands for row in _rows(command))
    by_flag: dict[str, str] = {}
    for row, count in rows.most_common():
        if count >= LEAST_COMMANDS:
            by_flag.setdefault(_flag(row), row)
    return set(by_flag.values())


def _flag(row: str) -> str:
    return row[row.index("--") :].partition(" ")[0].rstrip("`,")


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """The commands below one, in the order in which they are declared."""
    for each, below in getattr(command, "commands", {}).items():
        if below.hidden:
            continue
        if hasattr(below, "commands"):
            yield from _commands(f"{name} {each}", below)
        else:
            yield f"{name} {each}", below


def _arguments(command: Any) -> list[str]:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    if not arguments:
        return []
    rows = [
        f"| `{each.name.upper()}` | {'yes' if each.required else 'no'} "
        f"| {_text(each.declared.setting.help)} |\n"
        for each in arguments
    ]
    return ["\n| argument | required | |\n|---|---|---|\n", *rows]


def _options(command: Any, shared: set[str]) -> list[str]:
    rows = _rows(command)
    own, others = ([row for row in rows if (row in shared) is each] for each in (False, True))
    named = ", ".join(f"`{_flag(row)}`" for row in others)
    return [
        *((*TABLE, *own) if own else ()),
        *([f"\n[Shared options](#shared-options): {named}.\n"] if named else []),
    ]


def _rows(command: Any) -> list[str]:
    options = [
        each for each in command.params if each.param_type_name == "option" and not each.hidden
    ]
    return [_option(each) for each in options if "--help" not in each.opts]


def _option(option: Any) -> str:
    value = "" if option.is_flag else f" {_value(option)}"
    names = [f"`{name}{value}`" for name in (*option.opts, *option.secondary_opts)]
    variables = [option.envvar] if isinstance(option.envvar, str) else option.envvar or []
    cells = (
        ", ".join(names),
        ", ".join(f"`{variable}`" for variable in variables),
        _default(option),
        _text(option.help),
    )
    return f"| {' | '.join(cells)} |\n"


def _value(option: Any) -> str:
    """The word for an option's value, and its bounds."""
    declared = option.declared
    word = declared.word.replace("|", " or ")
    return f"{word} ({declared.bounds})" if declared.bounds else word


def _default(option: Any) -> str:
    if option.required:
        return "required"
    default = option.declared.default
    if default in (None, "", (), []) or (option.is_flag and not default):
        return ""
    if option.is_flag:
        return f"`{option.opts[0]}`"
    if isinstance(default, list | tuple):
        return ", ".join(f"`{each}`" for each in default)
    return f"`{getattr(default, 'value', default)}`"


def _text(help_text: str | None) -> str:
    """A help text as one line of a table."""
    return " ".join((help_text or "").split()).replace("|", "\\|")
