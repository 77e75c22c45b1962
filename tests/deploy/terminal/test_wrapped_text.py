"""Text is wrapped at the width of a terminal, and only there."""

import fcntl
import io
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Iterator

import pytest

from headrace.deploy.terminal.wrapped_text import columns_of, wrapped
from headrace.runtime.termination import REFUSED
from tests.deploy.command import HEADRACE, headrace

COMMAND = "`headrace pserver init --model news.toml --redis redis://HOST:PORT`"
ERROR = (
    f"headrace: model news: expected rows in the store, got none. Run {COMMAND} first, or name the "
    "folder of /srv/snapshots/that-has-a-long-name/news in 'one long value with spaces'.\n"
    "  first: log.csv, line 7, which has a time without a time zone"
)


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """A terminal of 60 columns: the ends of its reader and of its writer."""
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    yield reader, writer
    os.close(reader)
    os.close(writer)


def test_lines_break_between_words_and_keep_commands_values_and_paths_whole() -> None:
    assert wrapped(ERROR, 60).splitlines() == [
        "headrace: model news: expected rows in the store, got none.",
        "  Run",
        f"  {COMMAND}",
        "  first, or name the folder of",
        "  /srv/snapshots/that-has-a-long-name/news in",
        "  'one long value with spaces'.",
        "  first: log.csv, line 7, which has a time without a time",
        "    zone",
    ]


@pytest.mark.parametrize("columns", [None, 1_000])
def test_a_text_that_fits_or_is_for_a_pipe_stays_as_it_is(columns: int | None) -> None:
    assert wrapped(ERROR, columns) == ERROR


def test_a_pipe_has_no_columns_and_a_terminal_has_its_own(terminal: tuple[int, int]) -> None:
    assert columns_of(io.StringIO()) is None
    with os.fdopen(os.dup(terminal[1]), "w") as stream:
        assert columns_of(stream) == 60
        fcntl.ioctl(stream, termios.TIOCSWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
        assert columns_of(stream) is None, "an unknown width wraps nothing"


def test_an_error_is_wrapped_in_a_terminal_and_is_one_line_in_a_pipe(
    terminal: tuple[int, int],
) -> None:
    reader, writer = terminal
    command = ("fit", "--model", "missing.toml", "--data", "log.csv", "--to", "models")
    piped = headrace(*command)
    ended = subprocess.run([*HEADRACE, *command], stderr=writer, check=False)
    shown = os.read(reader, 10_000).decode().splitlines()
    assert ended.returncode == piped.returncode == REFUSED
    assert len(piped.stderr.splitlines()) == 1
    assert len(shown) > 1
    assert max(map(len, shown)) <= 60
    assert all(line.startswith("  ") for line in shown[1:])
    assert " ".join(line.strip() for line in shown) == piped.stderr.rstrip()
