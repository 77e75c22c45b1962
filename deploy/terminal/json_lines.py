"""Prints the results of commands as JSON, one object per line, for other programs."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    import msgspec


def print_json_lines(found: "Iterable[msgspec.Struct]") -> None:
    """Print each as one line."""
    import msgspec

    for each in found:
        click.echo(msgspec.json.encode(each).decode())
