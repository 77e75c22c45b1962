"""Runs the contenders one after another, and prints their figures."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console

import tests.bench.learner as described
from headrace.learner.validation.progressive import auc, log_loss
from tests.bench.bench_options import bench_parser, print_figures
from tests.bench.learner import vowpal_wabbit
from tests.bench.learner.alone import Alone, Learned, accuracy
from tests.bench.learner.core import learn_core
from tests.bench.learner.durable import Durable, Workshop
from tests.bench.learner.rivals import learn_river, learn_torch
from tests.bench.learner.stream import LR, make_stream, stream_spec

FM = 'architecture = "factorization_machine"\ndimensions = 16\n'
DEEPFM = 'architecture = "deepfm"\ndimensions = 16\nlayers = [128, 64]\nmini_batch = 256\n'


@dataclass(frozen=True, slots=True)
class Sizes:
    """Number of examples for each contender; 0: it does not take part."""

    core_lr: int
    core_fm: int
    core_deepfm: int
    durable_lr: int
    durable_fm: int
    durable_deepfm: int
    steady: int
    steady_s: float
    lines: int
    file: int
    river: int
    torch: int


QUICK = Sizes(
    *(80_000, 24_000, 0), *(240_000, 82_000, 41_000), *(1_000_000, 2.0), *(20_000, 40_000, 4_000, 0)
)
FULL = Sizes(
    *(2_000_000, 500_000, 200_000),
    *(2_000_000, 500_000, 300_000),
    *(4_000_000, 20.0),
    *(300_000, 1_000_000, 100_000, 1_000_000),
)


class Race:
    """The stream, and what each contender did with it."""

    def __init__(self, sizes: Sizes, tell: Callable[[str], None]) -> None:
        self.sizes, self._tell = sizes, tell
        longest = max(sizes.core_lr, sizes.durable_lr, sizes.steady, sizes.file, sizes.torch)
        self.stream = make_stream(longest, seed=1)
        self.figures: dict[str, float] = {}
        self.contenders: dict[str, dict[str, float]] = {}

    def add(self, name: str, learned: Learned, memory_mb: float, rate: float = 0.0) -> None:
        """Keep what a contender did; `rate`, if it is not that of the pass with the scores."""
        rate = rate or learned.rate
        self.figures[name] = round(rate)
        found: dict[str, float] = {"examples": learned.examples, "examples_per_s": round(rate)}
        found["memory_mb"] = round(memory_mb, 1)
        if learned.scores is not None:
            exact = accuracy(self.stream.labels, learned.scores, self.sizes.river)
            found |= {key: round(value, 5) for key, value in exact.items()}
        self.contenders[name] = found
        self._tell(f"{name}: {rate:,.0f} examples/s")

    def rivals(self, alone: Alone) -> None:
        """River, Vowpal Wabbit and torch."""
        sizes, first = self.sizes, self.stream.first
        (learned, learning_s), memory = alone.run(learn_river, first(sizes.river))
        self.add("river", learned, memory)
        self.figures["river_learning_alone"] = round(sizes.river / learning_s)
        for name, learn, count in (
            ("vowpal_wabbit_learn", vowpal_wabbit.learn_lines, sizes.lines),
            ("vowpal_wabbit_parsed", vowpal_wabbit.learn_parsed, sizes.lines),
            ("vowpal_wabbit_file", vowpal_wabbit.learn_file, sizes.file),
        ):
            learned, memory = alone.run(learn, first(count))
            self.add(name, learned, memory)
        if sizes.torch:
            learned, memory = alone.run(learn_torch, first(sizes.torch))
            self.add("torch", learned, memory)

    def cores(self, alone: Alone) -> None:
        """The models without Kafka and parameter server."""
        sizes, first = self.sizes, self.stream.first
        for name, model, count, passes in (
            ("core_lr", "", sizes.core_lr, 3),
            ("core_fm", FM, sizes.core_fm, 2),
            ("core_deepfm", DEEPFM, sizes.core_deepfm, 2),
        ):
            if not count:
                continue
            spec = stream_spec(model, more=LR)
            (learned, rate, rows), memory = alone.run(learn_core, first(count), spec.text, passes)
            self.add(name, learned, memory, rate)
            self.figures |= {f"{name}_new_rows": round(learned.rate), f"{name}_rows": rows}

    def durables(self) -> None:
        """Learner processes between Kafka and Valkey."""
        sizes = self.sizes
        plan = (
            ("durable_lr", "", sizes.durable_lr, 0.0),
            ("steady_lr", "", sizes.steady, sizes.steady_s),
            ("durable_fm", FM, sizes.durable_fm, 0.0),
            ("durable_deepfm", DEEPFM, sizes.durable_deepfm, 0.0),
        )
        specs = [stream_spec(model, name=name, more=LR) for name, model, _, _ in plan]
        longest = self.stream.first(max(count for _, _, count, _ in plan))
        with Workshop(specs, longest) as workshop:
            for (name, _, count, steady_s), spec in zip(plan, specs, strict=True):
                done = workshop.learn(spec, count, steady_s)
                self._add_durable(name, done)

    def _add_durable(self, name: str, done: Durable) -> None:
        learned = Learned(done.scores.shape[0], 1.0, done.scores)
        self.add(name, learned, done.memory_mb, done.rate)
        self.contenders[name]["log_growth_mb"] = round(done.log_growth_mb, 1)

    def settings_of_vowpal_wabbit(self, alone: Alone) -> None:
        """Its log loss by settings, over what it reads from its file; the best one, and ours."""
        stream = self.stream.first(self.sizes.file)
        found, _ = alone.run(vowpal_wabbit.learn_settings, stream, vowpal_wabbit.SETTINGS)
        losses = {
            options: round(log_loss(stream.labels, learned.scores), 5)
            for options, learned in zip(vowpal_wabbit.SETTINGS, found, strict=True)
        }
        for options, loss in losses.items():
            self._tell(f"vw {options}: log loss {loss:.5f}")
        (ours, _, _), _ = alone.run(learn_core, stream, stream_spec(more=LR).text, 2)
        assert ours.scores is not None
        self.contenders["log loss of vw by settings"] = losses
        self.figures["vowpal_wabbit_best_log_loss"] = min(losses.values())
        self.figures["core_lr_log_loss"] = round(log_loss(stream.labels, ours.scores), 5)

    def result(self) -> dict[str, object]:
        """Return everything, with the ratios."""
        figures, truth = self.figures, self.stream.first(self.sizes.river)
        ratios = {
            "durable_lr_to_vw": ("durable_lr", "vowpal_wabbit_learn"),
            "durable_lr_to_vw_parsed": ("durable_lr", "vowpal_wabbit_parsed"),
            "core_lr_to_vw_file": ("core_lr", "vowpal_wabbit_file"),
            "core_lr_new_rows_to_vw_file": ("core_lr_new_rows", "vowpal_wabbit_file"),
            "durable_lr_to_river": ("durable_lr", "river"),
        }
        shares = {key: round(figures[a] / figures[b], 2) for key, (a, b) in ratios.items()}
        self.contenders["truth"] = {
            "common_auc": round(auc(truth.labels, truth.truth), 5),
            "common_log_loss": round(log_loss(truth.labels, truth.truth), 5),
        }
        return {**figures, **shares, "contenders": self.contenders}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = bench_parser("learner", described.__doc__)
    chosen = parser.parse_args(arguments)
    console, began = Console(stderr=chosen.json), time.monotonic()
    race = Race(
        QUICK if chosen.quick else FULL,
        lambda text: console.print(f"{time.monotonic() - began:5.1f} s  {text}"),
    )
    race.durables()
    with Alone(quick=chosen.quick) as alone:
        race.cores(alone)
        race.rivals(alone)
        if not chosen.quick:
            race.settings_of_vowpal_wabbit(alone)
    print_figures(race.result(), as_json=chosen.json)


if __name__ == "__main__":
    main()
