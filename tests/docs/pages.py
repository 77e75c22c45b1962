"""Reads the pages of docs/: their fenced blocks, and the headrace commands in them."""

import re
import shlex
from pathlib import Path

import click

from headrace.deploy.cli.main import app

DOCS = Path(__file__).resolve().parents[2] / "docs"


def blocks(page: str, kind: str) -> list[str]:
    """The fenced blocks of one kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[str]:
    """The lines that call headrace, without the variables set before it."""
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    called = [re.sub(r"^(?:[A-Z_]+=\S+ )+", "", line) for line in lines]
    return [line for line in called if line.startswith("headrace ")]


def command_of(line: str) -> tuple[set[str], list[str]]:
    """The options that the command of a line has, and the words of the line behind it."""
    words = shlex.split(line, comments=True)[1:]
    command: object = app
    while isinstance(command, click.Group) or hasattr(command, "commands"):
        word = words.pop(0)
        assert word in command.commands, line
        command = command.commands[word]
    options = {name for parameter in command.params for name in parameter.opts}  # type: ignore[attr-defined]
    return options, words
