"""Compares headrace with other learners on a week of real traffic.

    python -m tests.bench.learner_week [--quick] [--json] [--data DIR]

All learn the fourteen ids of `deploy/models/news_ids.toml`, in one pass and in order of time:
278,139 examples, each scored before it is learned. An impression is learned once, when its window
closes and its label is known. headrace has the constants of the spec. Vowpal Wabbit runs with its
default optimizer, `--ftrl` and `--coin`, at four learning rates each. It has one index per id and
no interactions, because the crosses are among the ids. River and torch run as on the synthetic
stream.

The figures of each are examples/s, MB by which the process grew at its peak, AUC and log loss of
the week, and the same of its second half, because headrace's constants were chosen on the first.
Vowpal Wabbit's best is the best of twelve settings *by the reported figure*; headrace has one
setting. `vw ...` reads a file and writes predictions. `vowpal_wabbit_learn` gets lines from Python
and returns no predictions. `vowpal_wabbit_file` reads its file and writes none, and its MB are
those of every setting. The MB of River and torch include the library. The durable learner leaves
out examples that do not fill a last batch.

`--quick` learns only the first examples, with three of the twelve settings. Without the data
(HEADRACE_WEEK or --data) it measures nothing and reports that.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console

from headrace.ingest.features.encoder import Encoder
from headrace.learner.spec.model_spec import ModelSpec, load_spec, parse_spec
from headrace.learner.suggestion.sample_stream import joined, unlabelled
from headrace.learner.validation.progressive import auc, log_loss
from tests.bench.bench_options import bench_parser, print_figures
from tests.bench.ebnerd.week import WEEK, Events, leave_without, read_events
from tests.bench.learner import vowpal_wabbit
from tests.bench.learner.alone import Alone, Learned
from tests.bench.learner.core import learn_core
from tests.bench.learner.durable import Workshop
from tests.bench.learner.rivals import learn_river, learn_torch
from tests.bench.learner.stream import Stream

SPEC = Path(__file__).parents[3] / "deploy" / "models" / "news_ids.toml"
_QUICK_EXAMPLES = 40_960
_QUICK_SETTINGS = ("-l 0.5", "--ftrl --ftrl_alpha 0.15", "--coin --ftrl_alpha 4.0")
CORE, DURABLE, VW = "headrace_core", "headrace_durable", "vw "


def week_spec() -> ModelSpec:
    """Return the model of ids, each impression learned once."""
    text = load_spec(SPEC).text.replace('policy = "immediate"', 'policy = "window"')
    return parse_spec(text, str(SPEC))


def week_stream(spec: ModelSpec, events: Events) -> Stream:
    """Return the examples of a log, their ids numbered through."""
    encoded = Encoder(spec.fields).encode(events.impressions)
    named = events.impression_ids, events.request_ids
    shown = unlabelled(spec, encoded, events.shown_ms, *named)
    labels, ids = joined(spec, shown, events.clicks)[0].labels, encoded.ids
    ranks, values = np.empty(ids.shape, np.int64), np.empty(ids.shape[1], np.int64)
    for k in range(ids.shape[1]):
        found, ranks[:, k] = np.unique(ids[:, k], return_inverse=True)
        values[k] = found.shape[0]
    count = labels.shape[0]
    return Stream(values, ranks, np.empty((count, 0), np.float32), np.full(count, np.nan), labels)


class Race:
    """The runs of all contenders on one stream."""

    def __init__(self, spec: ModelSpec, stream: Stream, tell: Callable[[str], None]) -> None:
        self.spec, self.stream, self._tell = spec, stream, tell
        self.contenders: dict[str, dict[str, float]] = {}

    def run(self, settings: Sequence[str], *, quick: bool) -> None:
        """Let everybody learn."""
        stream, add = self.stream, self._add
        with Workshop([self.spec], stream) as workshop:
            done = workshop.learn(self.spec, len(stream))
            add(DURABLE, done.examples, done.rate, done.memory_mb, done.scores)
        with Alone(quick=quick) as alone:
            (learned, _, _), memory = alone.run(learn_core, stream, self.spec.text)
            self._learned(CORE, learned, memory)
            (learned, _), memory = alone.run(learn_river, stream)
            self._learned("river", learned, memory)
            learned, memory = alone.run(learn_torch, stream)
            self._learned("torch", learned, memory)
            for name, learn in (
                ("vowpal_wabbit_learn", vowpal_wabbit.learn_lines),
                ("vowpal_wabbit_file", vowpal_wabbit.learn_file),
            ):
                learned, memory = alone.run(learn, stream)
                self._learned(name, learned, memory)
            found, _ = alone.run(vowpal_wabbit.learn_settings, stream, settings)
            for options, learned in zip(settings, found, strict=True):
                self._learned(VW + options, learned)

    def _learned(self, name: str, learned: Learned, memory_mb: float = np.nan) -> None:
        self._add(name, learned.examples, learned.rate, memory_mb, learned.scores)

    def _add(
        self,
        name: str,
        examples: int,
        rate: float,
        memory_mb: float,
        scores: npt.NDArray[np.float64] | None,
    ) -> None:
        found = {"examples": examples, "examples_per_s": rate}
        if not np.isnan(memory_mb):
            found["memory_mb"] = memory_mb
        if scores is not None:
            found |= self._accuracy(scores)
        self.contenders[name] = {key: round(value, 5) for key, value in found.items()}
        self._tell(f"{name}: {rate:,.0f} examples/s")

    def _accuracy(self, scores: npt.NDArray[np.float64]) -> dict[str, float]:
        labels, middle = self.stream.labels[: scores.shape[0]], len(self.stream) // 2
        return {
            "auc": auc(labels, scores),
            "log_loss": log_loss(labels, scores),
            "second_half_auc": auc(labels[middle:], scores[middle:]),
            "second_half_log_loss": log_loss(labels[middle:], scores[middle:]),
        }

    def result(self) -> dict[str, object]:
        """Return all figures, and ratios of headrace to the best of Vowpal Wabbit."""
        found: dict[str, object] = {"contenders": self.contenders}
        theirs = {name: each for name, each in self.contenders.items() if name.startswith(VW)}
        for key in ("log_loss", "second_half_log_loss"):
            best = min(theirs, key=lambda name, key=key: theirs[name][key])  # type: ignore[misc]
            found[f"vowpal_wabbit_best_{key}"] = theirs[best][key]
            found[f"vowpal_wabbit_best_by_{key}"] = best.removeprefix(VW)
            found[f"{CORE}_{key}"] = self.contenders[CORE][key]
        return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = bench_parser("learner_week", __doc__)
    parser.add_argument("--data", type=Path, default=WEEK, help="directory of the sample week")
    chosen = parser.parse_args(arguments)
    leave_without(chosen.data)
    spec, progress = week_spec(), Console(stderr=True)
    stream = week_stream(spec, read_events(chosen.data))
    race = Race(spec, stream.first(_QUICK_EXAMPLES) if chosen.quick else stream, progress.print)
    race.run(_QUICK_SETTINGS if chosen.quick else vowpal_wabbit.SETTINGS, quick=chosen.quick)
    print_figures(race.result(), as_json=chosen.json)


if __name__ == "__main__":
    main()
