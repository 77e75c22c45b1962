"""Runs Vowpal Wabbit on the same stream: its Python `learn`, its file, its settings.

Ids are whole numbers, each with an index of its own. Vowpal Wabbit then does not hash, and with
enough bits nothing collides: the best case for it.

`learn` of a line of text is the usual way for examples to enter it from Python. `learn` of an
Example that was parsed before the clock started shows the cost of parsing; a user always pays for
that parsing, too. A file is read in a thread of its own while Vowpal Wabbit learns.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from vowpalwabbit import Workspace

from tests.bench.learner.alone import Learned

if TYPE_CHECKING:
    from tests.bench.learner.stream import Stream

_ALWAYS = "--quiet --no_stdin --loss_function logistic --link logistic"
_CHUNK = 5_000
SETTINGS = tuple(
    f"{kind} {rate} {value}".strip()
    for kind, rate, values in (
        ("", "-l", (0.1, 0.25, 0.5, 1.0)),
        ("--ftrl", "--ftrl_alpha", (0.005, 0.02, 0.05, 0.15)),
        ("--coin", "--ftrl_alpha", (0.5, 1.0, 4.0, 8.0)),
    )
    for value in values
)
"""Each kind of optimizer with four learning rates, its own default among them."""


def lines_of(stream: Stream) -> Iterator[str]:
    """Yield the stream as text."""
    indexes = stream.indexes
    numbers = "".join(f" {k}:%.4g" for k in range(stream.numbers.shape[1]))
    form = "%d |c" + " %d" * stream.ranks.shape[1] + (f" |n{numbers}" if numbers else "")
    for begin in range(0, len(stream), _CHUNK):
        rows = slice(begin, begin + _CHUNK)
        labels = (2 * stream.labels[rows].astype(np.int64) - 1).tolist()
        ids, values = indexes[rows].tolist(), stream.numbers[rows].tolist()
        for label, these, those in zip(labels, ids, values, strict=True):
            yield form % (label, *these, *those)


def learn_lines(stream: Stream) -> Learned:
    """Learn lines of text, which are made off the clock. Scores are not told."""
    workspace, lines = Workspace(_always(stream.all_indexes)), list(lines_of(stream))
    learn = workspace.learn
    began = time.perf_counter()
    for line in lines:
        learn(line)
    seconds = time.perf_counter() - began
    workspace.finish()
    return Learned(len(stream), seconds, None)


def learn_parsed(stream: Stream) -> Learned:
    """Learn Examples; making them and reading their predictions goes off the clock."""
    workspace, seconds = Workspace(_always(stream.all_indexes)), 0.0
    learn, scores, lines = workspace.learn, list[float](), lines_of(stream)
    for begin in range(0, len(stream), _CHUNK):
        count = min(_CHUNK, len(stream) - begin)
        examples = [workspace.example(next(lines)) for _ in range(count)]
        began = time.perf_counter()
        for example in examples:
            learn(example)
        seconds += time.perf_counter() - began
        for example in examples:
            scores.append(example.get_simplelabel_prediction())
            workspace.finish_example(example)
    workspace.finish()
    return Learned(len(stream), seconds, np.array(scores))


def learn_file(stream: Stream) -> Learned:
    """Learn a file of text. Scores are not told: writing them takes longer."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
        path = write_text(stream, Path(directory))
        return Learned(len(stream), learn_text(path, stream.all_indexes), None)


def learn_settings(stream: Stream, settings: Sequence[str]) -> list[Learned]:
    """Learn a file of text by each of these, with scores, which are written to another file."""
    found = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
        path, predicted = write_text(stream, Path(directory)), Path(directory, "scores.txt")
        for options in settings:
            seconds = learn_text(path, stream.all_indexes, f"{options} -p {predicted}")
            found.append(Learned(len(stream), seconds, np.loadtxt(predicted)))
    return found


def write_text(stream: Stream, directory: Path) -> Path:
    """Write a file of text."""
    path = directory / "examples.txt"
    with path.open("w") as file:
        file.writelines(line + "\n" for line in lines_of(stream))
    return path


def learn_text(path: Path, indexes: int, options: str = "") -> float:
    """Learn a file of text with indexes below `indexes`; return the seconds it took."""
    began = time.perf_counter()
    Workspace(f"{_always(indexes)} {options} -d {path}").finish()  # reads to the end at once
    return time.perf_counter() - began


def _always(indexes: int) -> str:
    return f"{_ALWAYS} -b {indexes.bit_length()}"
