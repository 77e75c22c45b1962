"""Compares all models on the sample week: ids alone and with statistics, under both label policies.

    python -m tests.bench.week_table [--quick] [--json] [--choice | --suggest] [--data DIR]

It learns in one process, each impression scored before it is learned (`tests.bench.ebnerd.week`).
The second half of the week is reported. Inputs are those of
`news_ids.toml` and of `news.toml`. DIN, the sequence networks, and DCN-V2 in one more row, also get
the user's earlier clicks (`tests.bench.week_history`).

The constants have the least log loss on the first half, for each model, inputs and policy. They are
those of the specs in deploy/models, or those in CHOSEN if one of ten to twenty tried sets was
better by 0.0002 or more. (DCN-V2 with history: four sets and one. GRU and self-attention: three
and two, for statistics at once only. Logistic regression: none of five was better.) Under `window`,
a score is made ten minutes later than under `immediate`, when more is known: compare rows, not
these columns. `--quick` runs the models that need no torch.

`--choice` measures `loss = "choice"` beside the logistic loss, with the constants of the latter:
logistic regression and DCN-V2, with statistics and with more of them (the article's number of
shows, and its click rate on a page, on a device and for a user), under `immediate`. Logistic
regression also learns labels that come on time, with the impression, which no stream has.

`--suggest` measures the specs that `headrace suggest` writes for the week: by its rules alone, with
a search of a minute, and with `--architecture dcn_v2` and a search of ten.
"""

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import Progress

from headrace.ingest.features.encoder import Encoded
from headrace.ingest.features.fields import Field
from headrace.learner.spec.architecture import LOGISTIC_REGRESSION
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from headrace.learner.suggestion.spec_suggestion import suggest_spec
from tests.bench.bench_options import bench_parser, print_figures
from tests.bench.ebnerd.week import WEEK, encode, learn, leave_without, read_events
from tests.bench.ebnerd.week_history import RECENT

_MODELS = Path(__file__).parents[3] / "deploy" / "models"
_WINDOW = 'policy = "window"\nwindow_s = 600\n'
_IMMEDIATE = 'policy = "immediate"\nwindow_s = 1800\n'
INPUTS = {"ids": "news_ids.toml", "statistics": "news.toml"}
MORE = "more statistics"
ON_TIME = "on time"
_AT_ONCE = 'policy = "window"\nwindow_s = 1\n'
POLICIES = {"immediate": _IMMEDIATE, "window": _WINDOW, ON_TIME: _AT_ONCE}
MODELS = {
    "logistic regression": ("", {}),
    "factorization machine": ("news_fm.toml", {}),
    "field-weighted FM": ("news_deepfm.toml", {"deepfm": "field_weighted_fm"}),
    "Wide & Deep": ("news_deepfm.toml", {"deepfm": "wide_and_deep"}),
    "DeepFM": ("news_deepfm.toml", {}),
    "DCN-V2": ("news_dcn.toml", {}),
    "DIN": ("news_deepfm.toml", {"deepfm": "din"}),
    "DCN-V2 with history": ("news_dcn.toml", {}),
    "GRU": ("news_deepfm.toml", {"deepfm": "sequence"}),
    "self-attention": ("news_deepfm.toml", {"deepfm": "sequence"}),
}
"""Name -> the spec whose structure and optimizers it has ("": those of the inputs' own), and what
is another word there."""
_WITHOUT_TORCH = 2
_TOLD = ("DIN", "DCN-V2 with history", "GRU", "self-attention")
_HISTORY = f'history = "{RECENT}"\ntarget = "article"\n\n'
_DEVICE = """
[fields.article_device]
number = 30
transform = "cross"
of = ["article", "device"]

"""
_SHOWS = """
[statistics.article_shows]
number = 80
statistic = "show"
of = "article"
per_doubling = 1

[statistics.rate_by_shows]
number = 81
cross = ["article_rate", "article_shows"]

"""
_RATES = {82: "page_article", 83: "article_device", 84: "user_article"}
CHOICE_MODELS = ("logistic regression", "DCN-V2")
_BAG = f'[fields.{RECENT}]\nnumber = 60\ntransform = "bag"\n\n'


class Constants(NamedTuple):
    """Constants of optimizers and vectors that were better than those of the specs."""

    weights: tuple[str, float, float]
    """ftrl: alpha, l2; coin: alpha, beta."""
    vectors: tuple[float, float] = (0.15, 10.0)
    """ftrl: alpha, l2."""
    layers: float = 0.02
    """adagrad: alpha."""
    init_scale: float = 0.03

    def optimizers(self, *, dense: bool) -> str:
        """Return the sections `[optimizer]`; dense: the model has layers."""
        name, alpha, other = self.weights
        more = f"beta = {other}" if name == "coin" else f"beta = 1.0\nl1 = 0.0\nl2 = {other}"
        vectors_alpha, vectors_l2 = self.vectors
        text = (
            f'[optimizer]\nname = "{name}"\nalpha = {alpha}\n{more}\n'
            f'[optimizer.embeddings]\nname = "ftrl"\nalpha = {vectors_alpha}\nbeta = 1.0\n'
            f"l1 = 0.0\nl2 = {vectors_l2}\n"
        )
        layers = f'[optimizer.dense]\nname = "adagrad"\nalpha = {self.layers}\n'
        return text + layers if dense else text


_COIN, _HALF_COIN = ("coin", 0.7, 1.5), ("coin", 0.35, 1.5)
CHOSEN: dict[str, dict[tuple[str, str], Constants]] = {
    "factorization machine": {
        ("ids", "immediate"): Constants(_COIN, vectors=(0.3, 4.0)),
        ("ids", "window"): Constants(_COIN, vectors=(0.08, 20.0), init_scale=0.01),
        ("statistics", "window"): Constants(
            ("ftrl", 0.1, 4.0), vectors=(0.08, 20.0), init_scale=0.01
        ),
    },
    "field-weighted FM": {
        ("ids", "immediate"): Constants(_COIN, vectors=(0.15, 4.0), layers=0.05, init_scale=0.01),
        ("ids", "window"): Constants(_COIN, vectors=(0.3, 10.0), layers=0.05),
        ("statistics", "immediate"): Constants(
            ("ftrl", 0.2, 10.0), vectors=(0.08, 20.0), layers=0.05, init_scale=0.01
        ),
        ("statistics", "window"): Constants(
            ("ftrl", 0.15, 4.0), vectors=(0.08, 20.0), layers=0.05, init_scale=0.01
        ),
    },
    "Wide & Deep": {
        ("ids", "immediate"): Constants(_COIN, vectors=(0.3, 10.0), layers=0.05),
        ("ids", "window"): Constants(
            _HALF_COIN, vectors=(0.15, 20.0), layers=0.05, init_scale=0.01
        ),
        ("statistics", "immediate"): Constants(_HALF_COIN, vectors=(0.3, 4.0), init_scale=0.01),
        ("statistics", "window"): Constants(_HALF_COIN, vectors=(0.3, 4.0)),
    },
    "DeepFM": {
        ("ids", "immediate"): Constants(_COIN, vectors=(0.3, 20.0), layers=0.05),
        ("ids", "window"): Constants(_HALF_COIN, vectors=(0.15, 20.0), init_scale=0.01),
        ("statistics", "window"): Constants(_HALF_COIN, vectors=(0.08, 20.0), init_scale=0.01),
    },
    "DCN-V2": {
        ("ids", "immediate"): Constants(_COIN, layers=0.05),
        ("ids", "window"): Constants(_HALF_COIN, vectors=(0.15, 4.0), layers=0.05),
        ("statistics", "window"): Constants(_HALF_COIN, vectors=(0.15, 4.0), init_scale=0.01),
    },
    "DIN": {
        ("ids", "immediate"): Constants(_COIN, vectors=(0.3, 10.0), init_scale=0.01),
        ("ids", "window"): Constants(_HALF_COIN, layers=0.05, init_scale=0.01),
        ("statistics", "immediate"): Constants(_HALF_COIN, vectors=(0.3, 4.0)),
        ("statistics", "window"): Constants(_HALF_COIN, vectors=(0.15, 4.0)),
    },
    "DCN-V2 with history": {
        ("ids", "immediate"): Constants(_COIN, layers=0.05),
        ("ids", "window"): Constants(_HALF_COIN, vectors=(0.15, 4.0), layers=0.05),
        ("statistics", "immediate"): Constants(_HALF_COIN, vectors=(0.3, 4.0), init_scale=0.01),
        ("statistics", "window"): Constants(_HALF_COIN, vectors=(0.15, 4.0), init_scale=0.01),
    },
}
"""Model -> inputs and policy -> what was better on the first half than the specs' constants."""


def spec_of(model: str, inputs: str, policy: str, loss: str = "logistic") -> ModelSpec:
    """Return one of the table's specs."""
    name, words = MODELS[model]
    file = INPUTS["statistics" if inputs == MORE else inputs]
    ours, theirs = ((_MODELS / each).read_text() for each in (file, name or file))
    for word, other in words.items():
        theirs = theirs.replace(f'architecture = "{word}"', f'architecture = "{other}"')
    if "field_weighted" in theirs:  # it has no layers
        theirs = "".join(
            line for line in theirs.splitlines(keepends=True) if not line.startswith("layers")
        )
    structure = theirs[theirs.index("[model]") : theirs.index("[label]")]
    fields = ours[ours.index("[fields.") : ours.index("[optimizer]")]
    optimizers = theirs[theirs.index("[optimizer]") :]
    chosen = CHOSEN.get(model, {}).get((inputs, policy))
    if chosen is not None:
        optimizers = chosen.optimizers(dense="[optimizer.dense]" in optimizers)
        structure = re.sub("init_scale = .*", f"init_scale = {chosen.init_scale}", structure)
    if inputs == MORE:
        fields = _with_more_statistics(fields)
    if loss == "choice":
        structure = structure.replace("[model]\n", '[model]\nloss = "choice"\n', 1)
    if model in _TOLD:
        fields += _BAG
    if model in ("DIN", "GRU", "self-attention"):
        structure += _HISTORY
    if model == "self-attention":
        structure += 'encoder = "attention"\n\n'
    text = f"{structure}[label]\n{POLICIES[policy]}\n{fields}{optimizers}"
    return parse_spec(text, f"{model}, {inputs}, {policy}")


def _with_more_statistics(fields: str) -> str:
    rates = "".join(
        f'[statistics.rate_{number}]\nnumber = {number}\nstatistic = "rate"\nof = "{of}"\n'
        "prior_clicks = 0.9\nprior_shows = 10.0\nper_doubling = 4\n\n"
        for number, of in _RATES.items()
    )
    return fields.replace("[statistics.", _DEVICE + "[statistics.", 1) + _SHOWS + rates


_KEYS = (
    *("model", "inputs", "policy", "loss", "auc", "within", "log_loss", "calibration"),
    *("first_log_loss", "seconds"),
)


def runs_of(*, choice: bool, quick: bool) -> list[tuple[str, str, str, str]]:
    """Return model, inputs, policy and loss of each run."""
    if choice:
        models = CHOICE_MODELS[: 1 if quick else None]
        inputs, losses = ("statistics", MORE), ("logistic", "choice")
        on_time = itertools.product(CHOICE_MODELS[:1], inputs, (ON_TIME,), losses)
        return [*itertools.product(models, inputs, ("immediate",), losses), *on_time]
    models = tuple(MODELS)[: _WITHOUT_TORCH if quick else None]
    return list(itertools.product(models, INPUTS, ("immediate", "window"), ("logistic",)))


def suggested(data: Path) -> dict[tuple[str, str, str, str], ModelSpec]:
    """Return the specs that are suggested for the week, by what the table calls them."""
    found: dict[tuple[str, str, str, str], ModelSpec] = {}
    for architecture, model, name, seconds in (
        (LOGISTIC_REGRESSION, "logistic regression", "rules alone", 0.0),
        (LOGISTIC_REGRESSION, "logistic regression", "a search", 60.0),
        ("dcn_v2", "DCN-V2", "a search", 600.0),
    ):
        text = suggest_spec(data, architecture=architecture, seconds=seconds).text
        spec = parse_spec(text, f"{model} by {name}")
        found[model, name, spec.fields.label.policy, spec.structure.loss] = spec
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = bench_parser("week_table", __doc__, quick="only models that need no torch")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--choice", action="store_true", help="the loss of a choice")
    which.add_argument("--suggest", action="store_true", help="what `headrace suggest` writes")
    parser.add_argument("--data", type=Path, default=WEEK)
    chosen = parser.parse_args(arguments)
    leave_without(chosen.data)
    console = Console(stderr=chosen.json)
    if chosen.suggest:
        runs = suggested(chosen.data)
    else:
        names = runs_of(choice=chosen.choice, quick=chosen.quick)
        runs = {run: spec_of(*run) for run in names}
    events = read_events(chosen.data)
    on_time = replace(events, clicked_ms=events.shown_ms[events.clicked] + 1)
    found = []
    encoded: dict[tuple[Field, ...], Encoded] = {}  # alike under both policies, and of most models
    with Progress(console=console) as progress:
        task = progress.add_task("", total=len(runs))
        for run, spec in runs.items():
            progress.update(task, description=", ".join(run))
            read = spec.fields.singles + spec.fields.bags
            if read not in encoded:
                encoded[read] = encode(spec, events)
            log = on_time if ON_TIME in run else events
            outcome = learn(spec, log, encoded[read])
            first, half = outcome.halves
            numbers = (half.auc, half.request_auc, half.log_loss, half.calibration, first.log_loss)
            shown = [f"{each:.4f}" for each in numbers]
            found.append(dict(zip(_KEYS, (*run, *numbers, outcome.seconds), strict=True)))
            progress.console.print(*run, *shown, f"{outcome.seconds:.0f} s")
            progress.advance(task)
    print_figures({"rows": found}, as_json=chosen.json)


if __name__ == "__main__":
    main()
