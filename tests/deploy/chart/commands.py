"""Checks arguments and variables of a container against the command line of headrace."""

from collections.abc import Iterator
from typing import Any

from headrace.deploy.cli.main import app

_WITHOUT_OPTION = {"HEADRACE_REDIS_USER", "HEADRACE_REDIS_PASSWORD"}
"""Variables for secrets, which no option takes."""


def command_of(arguments: list[str]) -> list[str]:
    """Return the names of the command that accepts these arguments.

    Raises AssertionError or the error of the parser if none does.
    """
    found: Any = app
    names: list[str] = []
    while hasattr(found, "commands"):
        names.append(arguments[len(names)])
        assert names[-1] in found.commands, f"unknown command: {arguments}"
        found = found.commands[names[-1]]
    with found.make_context("headrace", list(arguments[len(names) :]), resilient_parsing=True):
        pass
    options = {option for parameter in found.params for option in parameter.opts}
    unknown = {each for each in arguments if each.startswith("--")} - options
    assert not unknown, f"unknown options {unknown} of {names}"
    return names


def unknown_variables(environment: dict[str, Any] | list[dict[str, Any]]) -> set[str]:
    """Return the names of headrace's variables that no command reads."""
    names = environment if isinstance(environment, dict) else [each["name"] for each in environment]
    known = set(_variables(app)) | _WITHOUT_OPTION
    return {each for each in names if each.startswith("HEADRACE_")} - known


def _variables(command: Any) -> Iterator[str]:
    for parameter in command.params:
        if isinstance(parameter.envvar, str):
            yield parameter.envvar
    for each in getattr(command, "commands", {}).values():
        yield from _variables(each)
