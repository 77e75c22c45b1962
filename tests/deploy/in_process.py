"""Runs `headrace` in the process of the tests, and returns its exit code and its output."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import click
import pytest

from headrace.deploy.cli.main import app, main


def commands(group: Any = app, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Yield the words of each command, and the command."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


class Ended(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


class Commands:
    """Runs commands."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: str, typed: str = "", **variables: str) -> Ended:
        """Run a command with this standard input and these environment variables."""
        with self._monkeypatch.context() as patch, _environment():
            for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
                patch.delenv(name)
            for name, value in variables.items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", ["headrace", *arguments])
            patch.setattr(sys, "stdin", _Typed(typed))
            self._capsys.readouterr()
            with pytest.raises(SystemExit) as ended:
                main()
            out, err = self._capsys.readouterr()
        code = ended.value.code
        assert code is None or isinstance(code, int)
        assert "Traceback" not in err
        return Ended(code or 0, out, err)


class _Typed:
    def __init__(self, text: str) -> None:
        self._text = text

    def readline(self) -> str:
        return self._text


@contextmanager
def _environment() -> Iterator[None]:
    """Restore the environment and the log level after a command."""
    before, level = dict(os.environ), logging.getLogger().level
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        logging.getLogger().setLevel(level)


@pytest.fixture
def headrace(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Commands:
    """Runs `headrace` with these arguments."""
    return Commands(monkeypatch, capsys)
