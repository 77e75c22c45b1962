"""Every option with an environment variable has the same value from it as from the command line."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer.main

from headrace.deploy.cli.main import app

if TYPE_CHECKING:
    from collections.abc import Iterator

    from click import Command, Parameter

SPEC = str(Path(__file__).parents[3] / "examples" / "news_site" / "site.toml")
WITHOUT_VARIABLE = {
    # another meaning under the same flag
    "--alias": {"ingest replay"},
    "--from": {"export", "pserver rebuild"},
    "--name": {"suggest"},
    "--snapshot": {"export", "pserver restore"},
    "--to": {"fit", "export", "experiment run"},
    "--workers": {"fit", "experiment run"},
    # a new number, or the one of a snapshot, and not the number of the fleet
    "--buckets": {"pserver restore", "pserver reshard"},
    "--partitions": {"topics grow"},
    # of a demo of its own, or of no fleet
    "--model": {"demo", "warm", "plan"},
    "--speed": {"demo"},
}


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Command]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


COMMANDS = dict(commands(typer.main.get_command(app)))
OPTIONS = [
    (name, option)
    for name, command in COMMANDS.items()
    for option in command.params
    if option.envvar
]


def flag(option: Parameter) -> str:
    return max(option.opts, key=len) if option.param_type_name == "option" else ""


def another(option: Any) -> str:
    """Return a valid value that is not the default, as text."""
    kind = str(option.type_descriptor.annotation)
    if "Path" in kind and option.name == "model":
        return SPEC
    if "bool" in kind:
        return "1"
    if "int" in kind or "float" in kind:
        low, high = option.min or 0, option.max
        value = low + (1 if high is None or high > 1 + low else 0.5)
        value = value + 1 if value == option.default else value
        return str(value)
    choices = getattr(option.type_descriptor.annotation, "__members__", {}).values()
    return next((each.value for each in choices if each.value != option.default), "a=b")


def required(command: Command, but: str) -> list[str]:
    given = []
    for option in command.params:
        if option.required and option.name != but:
            values = [another(option)] * max(1, option.nargs)
            given += [flag(option), *values] if flag(option) else values
    return given


@pytest.mark.parametrize(
    ("command", "option"), OPTIONS, ids=[f"{name} {each.name}" for name, each in OPTIONS]
)
def test_a_command_has_the_same_value_from_a_variable_as_from_the_command_line(
    monkeypatch: pytest.MonkeyPatch, command: str, option: Any
) -> None:
    for _, each in OPTIONS:
        for variable in [each.envvar] if isinstance(each.envvar, str) else each.envvar or ():
            monkeypatch.delenv(variable, raising=False)
    text, common = another(option), required(COMMANDS[command], str(option.name))
    if option.param_type_name == "argument":
        given = [*common, text]
    else:
        given = [*common, flag(option)] + ([] if getattr(option, "is_flag", False) else [text])
    by_flag = COMMANDS[command].make_context(command, list(given)).params[str(option.name)]
    variable = option.envvar if isinstance(option.envvar, str) else option.envvar[0]
    monkeypatch.setenv(variable, text)
    by_variable = COMMANDS[command].make_context(command, list(common)).params[str(option.name)]
    assert by_variable == by_flag
    monkeypatch.delenv(variable)
    if not option.required:
        without = COMMANDS[command].make_context(command, list(common)).params[str(option.name)]
        assert without != by_flag


def test_a_flag_with_a_variable_has_one_in_every_command() -> None:
    found: dict[str, dict[bool, set[str]]] = defaultdict(lambda: {True: set(), False: set()})
    for name, command in COMMANDS.items():
        for option in command.params:
            if option.param_type_name == "option":
                found[flag(option)][bool(option.envvar)].add(name)
    lacking = {name: each[False] for name, each in found.items() if each[True] and each[False]}
    assert lacking == WITHOUT_VARIABLE
