"""Vowpal Wabbit over the same stream: its Python `learn`, its file, its settings.

Ids come as whole numbers, each its own: Vowpal Wabbit then takes them as they are, so nothing is
hashed and, with bits for all of them, nothing collides. That is the best that can be done for it.

`learn` of a line of text is the road by which examples come into it from Python. `learn` of an
Example that was parsed before the clock began shows what parsing costs; nobody has examples in this
form who did not pay for it. Reading a file goes on in a thread of its own beside learning.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from vowpalwabbit import Workspace

from tests.bench.learner.alone import Learned

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def learn_lines(stream: Stream, options: str = "") -> Learned:
    """Learn lines of text, which are made off the clock. Scores are not told."""
    workspace, lines = Workspace(_always(stream) + options), list(lines_of(stream))
    learn = workspace.learn
    began = time.perf_counter()
    for line in lines:
        learn(line)
    seconds = time.perf_counter() - began
    workspace.finish()
    return Learned(len(stream), seconds, None)


def learn_parsed(stream: Stream, options: str = "") -> Learned:
    """Learn Examples; making them and reading their predictions goes off the clock."""
    workspace, seconds = Workspace(_always(stream) + options), 0.0
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


def learn_file(stream: Stream, options: str = "", *, scored: bool = False) -> Learned:
    """Learn a file of text; with `scored`, also write what was predicted, which takes longer."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
        path, predicted = Path(directory, "examples.txt"), Path(directory, "scores.txt")
        with path.open("w") as file:
            file.writelines(line + "\n" for line in lines_of(stream))
        writing = f" -p {predicted}" if scored else ""
        began = time.perf_counter()
        # reads to the end at once
        workspace = Workspace(f"{_always(stream)}{options} -d {path}{writing}")
        workspace.finish()
        seconds = time.perf_counter() - began
        scores = np.loadtxt(predicted) if scored else None
    return Learned(len(stream), seconds, scores)


def _always(stream: Stream) -> str:
    return f"{_ALWAYS} -b {stream.all_indexes.bit_length()} "
