"""Every model on the sample week: from ids alone and with statistics of rows, under both policies.

    python -m tests.bench.week_table [--quick] [--json] [--data DIR]

As `tests.bench.week` measures it: in one process, events in one order, each impression scored
before it is learned, the second half of the week reported. Inputs are those of `news_ids.toml` and
of `news.toml`, constants those of the specs in deploy/models, which were chosen on the first half,
immediate labels and statistics; for other inputs and the other policy they are not chosen anew.
Under `window` a score is made ten minutes later than under `immediate`, when more is known: compare
rows, not these columns. --quick: the models that need no torch.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from ingest.encode import Encoder
from learner.spec import load_spec, parse_spec
from tests.bench.week import WEEK, learn, leave_without, read_events

if TYPE_CHECKING:
    from collections.abc import Sequence

    from learner.spec import ModelSpec

_MODELS = Path(__file__).parents[2] / "deploy" / "models"
_WINDOW = 'policy = "window"\nwindow_s = 600\n'
_IMMEDIATE = 'policy = "immediate"\nwindow_s = 1800\n'
INPUTS = {"ids": "news_ids.toml", "statistics": "news.toml"}
POLICIES = {"immediate": _IMMEDIATE, "window": _WINDOW}
MODELS = {
    "logistic regression": ("", {}),
    "factorization machine": ("news_fm.toml", {}),
    "field-weighted FM": ("news_deepfm.toml", {"deepfm": "field_weighted_fm"}),
    "Wide & Deep": ("news_deepfm.toml", {"deepfm": "wide_and_deep"}),
    "DeepFM": ("news_deepfm.toml", {}),
    "DCN-V2": ("news_dcn.toml", {}),
}
"""Name -> the spec whose structure and optimizers it has ("": those of the inputs' own), and what
is another word there."""
_WITHOUT_TORCH = 2


def spec_of(model: str, inputs: str, policy: str) -> ModelSpec:
    """Return one of the table's specs."""
    name, words = MODELS[model]
    ours = (_MODELS / INPUTS[inputs]).read_text()
    theirs = (_MODELS / (name or INPUTS[inputs])).read_text()
    for word, other in words.items():
        theirs = theirs.replace(f'architecture = "{word}"', f'architecture = "{other}"')
    if "field_weighted" in theirs:  # it has no layers
        theirs = "".join(
            line for line in theirs.splitlines(keepends=True) if not line.startswith("layers")
        )
    structure = theirs[theirs.index("[model]") : theirs.index("[label]")]
    fields = ours[ours.index("[fields.") : ours.index("[optimizer]")]
    optimizers = theirs[theirs.index("[optimizer]") :]
    text = f"{structure}[label]\n{POLICIES[policy]}\n{fields}{optimizers}"
    return parse_spec(text, f"{model}, {inputs}, {policy}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="only models that need no torch")
    parser.add_argument("--json", action="store_true", help="one JSON object, nothing else")
    parser.add_argument("--data", type=Path, default=WEEK)
    chosen = parser.parse_args(arguments)
    leave_without(chosen.data)
    console = Console(stderr=chosen.json)
    models = list(MODELS)[: _WITHOUT_TORCH if chosen.quick else None]
    events = read_events(chosen.data)
    encoded = {
        inputs: Encoder(load_spec(_MODELS / name).fields).encode(events.impressions)
        for inputs, name in INPUTS.items()
    }
    table = Table("model", "inputs", "policy", "AUC", "within a request", "log loss", "calibration")
    found = []
    with Progress(console=console) as progress:
        task = progress.add_task("", total=len(models) * len(INPUTS) * len(POLICIES))
        for model, inputs, policy in itertools.product(models, INPUTS, POLICIES):
            progress.update(task, description=f"{model}, {inputs}, {policy}")
            outcome = learn(spec_of(model, inputs, policy), events, encoded[inputs])
            half = outcome.halves[1]
            numbers = (half.auc, half.request_auc, half.log_loss, half.calibration)
            shown = [f"{each:.4f}" for each in numbers]
            table.add_row(model, inputs, policy, *shown)
            found.append([model, inputs, policy, *numbers, outcome.seconds])
            progress.console.print(model, inputs, policy, *shown, f"{outcome.seconds:.0f} s")
            progress.advance(task)
    if chosen.json:
        keys = ("model", "inputs", "policy", "auc", "within", "log_loss", "calibration", "seconds")
        print(json.dumps({"rows": [dict(zip(keys, each, strict=True)) for each in found]}))
    else:
        console.print(table)


if __name__ == "__main__":
    main()
