"""Measures how the size of a batch affects accuracy: only where gradients are summed.

    python -m tests.bench.batch_size [--quick] [--json] [--chart FILE.html]

The stream of `tests.bench.learner` is learned once in batches of 1 to 4096, each example scored
before it is learned. Logistic regression and the factorization machine learn example by example in
any batch. Their figures must be equal to the last bit, and the benchmark fails otherwise. A deep
model scores and steps by mini-batches (`mini_batch`, at most the batch). Larger mini-batches score
with older rows and take fewer steps of the layers. The curve shows the cost.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from headrace.learner.spec.model_spec import ModelSpec
from headrace.learner.validation.progressive import progressive
from tests.bench.learner.core import Core
from tests.bench.learner.stream import LR, Stream, batches_of, make_stream, stream_spec

_SIZES = (1, 4, 16, 64, 128, 256, 1024, 4096)
_QUICK_SIZES = (1, 16, 128, 4096)
_EXAMPLES, _QUICK_EXAMPLES = 40_000, 4_096
_DENSE = '[optimizer.dense]\nname = "adagrad"\nalpha = 0.02\n'
_DEEP = 'architecture = "deepfm"\ndimensions = 8\nmini_batch = {size}\n'
_EMBEDDINGS = '[optimizer.embeddings]\nname = "adagrad"\nalpha = 0.05\n'


@dataclass(frozen=True, slots=True)
class Point:
    """One model in batches of one size."""

    model: str
    batch: int
    auc: float
    log_loss: float
    normalized_entropy: float
    calibration: float
    examples_per_second: int


def specs_of(size: int) -> dict[str, ModelSpec]:
    """Return the models, for batches of this size."""
    machine = 'architecture = "factorization_machine"\ndimensions = 8\n'
    return {
        "lr": stream_spec(more=LR),
        "fm": stream_spec(machine, more=LR + _EMBEDDINGS),
        "deepfm": stream_spec(_DEEP.format(size=size), more=LR + _EMBEDDINGS + _DENSE),
    }


def run(stream: Stream, sizes: Sequence[int]) -> list[Point]:
    """Learn the stream with every model in batches of every size.

    Raises AssertionError if the size changes what must not change.
    """
    points: list[Point] = []
    first: dict[str, npt.NDArray[np.float64]] = {}
    for size in sizes:
        for name, spec in specs_of(size).items():
            Core(spec).learn(batches_of(spec, stream.first(64)))  # compiled off the clock
            learned = Core(spec).learn(batches_of(spec, stream, size))
            scores = learned.scores
            assert scores is not None
            if name != "deepfm":
                before = first.setdefault(name, scores)
                assert np.array_equal(before, scores), (
                    f"{name}: batches of {size} differ from others"
                )
            figures = progressive(stream.labels, scores)
            points.append(
                Point(
                    name,
                    size,
                    figures.auc,
                    figures.log_loss,
                    figures.normalized_entropy,
                    figures.calibration,
                    round(learned.rate),
                )
            )
    return points


def _show(points: list[Point], truth: float, console: Console) -> None:
    table = Table(title=f"progressive, by batch size; log loss of the truth {truth:.5f}")
    for column in ("model", "batch", "AUC", "log loss", "NE", "calibration", "examples/s"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for each in sorted(points, key=lambda point: (point.model, point.batch)):
        table.add_row(
            each.model,
            str(each.batch),
            f"{each.auc:.5f}",
            f"{each.log_loss:.5f}",
            f"{each.normalized_entropy:.4f}",
            f"{each.calibration:.3f}",
            f"{each.examples_per_second:,}",
        )
    console.print(table)


def _draw(points: list[Point], truth: float, path: Path) -> None:
    import plotly.graph_objects as go

    figure = go.Figure()
    for model in dict.fromkeys(each.model for each in points):
        mine = [each for each in points if each.model == model]
        figure.add_scatter(
            x=[each.batch for each in mine], y=[each.log_loss for each in mine], name=model
        )
    figure.add_hline(truth, line_dash="dot", annotation_text="the truth")
    figure.update_xaxes(type="log", title="examples in a batch")
    figure.update_yaxes(title="progressive log loss, nats")
    figure.write_html(path, include_plotlyjs=True)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help=f"{_QUICK_EXAMPLES:,} examples")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--chart", type=Path, help="draw the curves to this HTML file")
    asked = parser.parse_args()
    stream = make_stream(_QUICK_EXAMPLES if asked.quick else _EXAMPLES, seed=1)
    truth = progressive(stream.labels, stream.truth).log_loss
    points = run(stream, _QUICK_SIZES if asked.quick else _SIZES)
    if asked.chart:
        _draw(points, truth, asked.chart)
    if asked.json:
        found = {"truth_log_loss": truth, "points": [asdict(each) for each in points]}
        print(json.dumps(found))
        return
    _show(points, truth, Console())


if __name__ == "__main__":
    main()
