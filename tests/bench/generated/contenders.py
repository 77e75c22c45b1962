"""The contenders on a generated log: headrace by a spec, Vowpal Wabbit, River and a constant.

Each returns its score of every impression, made before it was learned. headrace learns as a
learner does: shows and delayed clicks in event time, candidates of a request scored together, each
batch judged by the guard. The others get the label with the impression, which is more than a
stream has.
"""

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from vowpalwabbit import Workspace

from headrace.ingest.events.contract import REQUEST_ID
from headrace.ingest.examples.batch import Examples, Kind
from headrace.ingest.examples.splitting import part_of
from headrace.learner.local.table_examples import TableEncoder
from headrace.learner.loop.guard.batch_guard import BatchGuard
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from headrace.learner.suggestion.delay_mixture import delay_mixture
from headrace.learner.suggestion.robust_constants import robust_constants
from headrace.learner.suggestion.sample_stream import Clicks, joined
from tests.bench.generated.log_generator import GeneratedLog
from tests.bench.learner.core import Core

Floats = npt.NDArray[np.float64]

ARCHITECTURES = {
    "lr": "logistic_regression",
    "fm": "factorization_machine",
    "deepfm": "deepfm",
    "dcn_v2": "dcn_v2",
}
FIRST = 2_000
"""Impressions that a spec is suggested from, and that are not counted."""
VOWPAL_WABBIT = (
    "",
    "-l 0.1",
    "--ftrl",
    "--ftrl --ftrl_alpha 0.1",
    "--coin",
    "--coin --ftrl_alpha 1.0",
)
"""Each kind of optimizer by default, and with another rate."""
_BUCKETS = 16
_BATCH = 512


class LearnedLog(NamedTuple):
    """The scores of n impressions, and how many batches the guard would have quarantined."""

    scores: Floats
    held_back: int


def spec_text(log: GeneratedLog, name: str, optimizer: str | None = None) -> str:
    """Return the spec of all fields of a log.

    Its constants are those that `headrace suggest` takes from the first impressions; `optimizer`
    replaces the sections that it suggests.
    """
    plan, clicks = log.plan, int(log.labels[:FIRST].sum())
    inputs = log.ids.shape[1] + bool(plan.bag_items)
    late_ms = (log.click_ms - log.shown_ms)[:FIRST][log.click_ms[:FIRST] >= 0]
    delays_s = delay_mixture(late_ms / 1000.0)
    constants = robust_constants(
        *(ARCHITECTURES[name], FIRST, clicks, float(inputs), delays_s),
        candidates=float(plan.candidates),
    )
    lines = ["[model]", 'name = "generated"', f'architecture = "{ARCHITECTURES[name]}"']
    lines += [*constants.model, "[label]", f"window_s = {plan.window_s}", "[fields]"]
    for field in range(log.ids.shape[1]):
        lines.append(f'f{field} = {{ number = {field + 1}, transform = "id" }}')
    if plan.bag_items:
        lines.append('bag = { number = 100, transform = "bag", pooling = "sqrt" }')
    lines += constants.optimizer if optimizer is None else [optimizer]
    lines += constants.calibration
    return "\n".join(lines) + "\n"


def plain_text(log: GeneratedLog, name: str) -> str:
    """Return the same spec without any constant."""
    text = spec_text(log, name, "").partition("[calibration]")[0].replace(', pooling = "sqrt"', "")
    return "\n".join(
        line for line in text.splitlines() if not line.startswith(("base_rate", "click_delay_s"))
    )


def stream_of(log: GeneratedLog, spec: ModelSpec) -> Examples:
    """Return the examples of a log, as a joiner with `policy = "immediate"` writes them."""
    columns: dict[str, pa.Array] = {
        f"f{field}": pa.array(log.ids[:, field]) for field in range(log.ids.shape[1])
    }
    columns[REQUEST_ID] = pa.array(log.requests).cast(pa.string())
    if log.plan.bag_items:
        offsets = pa.array(log.bag_offsets.astype(np.int32))
        columns["bag"] = pa.ListArray.from_arrays(offsets, pa.array(log.bag_ids))
    nothing = np.zeros(len(log), np.uint8)
    shown = TableEncoder(spec.fields).examples(columns, log.shown_ms, nothing)
    return joined(spec, shown, Clicks(log.shown_ms, log.click_ms))[0]


def learn_spec(spec: ModelSpec, stream: Examples) -> LearnedLog:
    """Learn a stream by a spec, as a learner of all rows does."""
    core, guard = Core(spec, _BUCKETS), BatchGuard(spec.fields.label.window_ms)
    scores, held = [], 0
    for begin in range(0, len(stream), _BATCH):
        batch = part_of(stream, begin, min(begin + _BATCH, len(stream)))
        scores.append(core.learn_batch(batch))
        held += guard.judge("log", begin, batch, scores[-1], core.pending.largest()) is not None
        core.push()
    return LearnedLog(np.concatenate(scores)[stream.kinds != Kind.CLICKED], held)


def learn_ours(log: GeneratedLog, text: str) -> LearnedLog:
    """Learn a log by the text of a spec."""
    spec = parse_spec(text, "generated.toml")
    return learn_spec(spec, stream_of(log, spec))


def constant_of(log: GeneratedLog) -> Floats:
    """Return the click rate of the impressions before each, with one click in a hundred ahead."""
    before = np.concatenate(([0.0], np.cumsum(log.labels)[:-1]))
    found: Floats = (before + 0.01) / (np.arange(len(log)) + 1.0)
    return found


def learn_vowpal_wabbit(log: GeneratedLog, options: str) -> Floats:
    """Return the scores of Vowpal Wabbit reading a file, by these options."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        path, predicted = Path(folder, "log.txt"), Path(folder, "scores.txt")
        path.write_text("\n".join(_lines(log)) + "\n")
        always = "--quiet --no_stdin --loss_function logistic --link logistic -b 22"
        Workspace(f"{always} {options} -d {path} -p {predicted}").finish()
        found: Floats = np.loadtxt(predicted)
    return found


def _lines(log: GeneratedLog) -> list[str]:
    names = [f"f{field}_" for field in range(log.ids.shape[1])]
    found, bags = [], log.bag_ids.tolist()
    for k, (label, row) in enumerate(zip(log.labels.tolist(), log.ids.tolist(), strict=True)):
        text = f"{2 * label - 1} |c " + " ".join(
            name + str(value) for name, value in zip(names, row, strict=True)
        )
        if bags:
            items = bags[log.bag_offsets[k] : log.bag_offsets[k + 1]]
            text += " |b " + " ".join(f"i{item}" for item in items)
        found.append(text)
    return found


def learn_river(log: GeneratedLog, most: int) -> Floats:
    """Return the scores of River's logistic regression with FTRL, for the first `most`."""
    from river import linear_model, optim

    model: Any = linear_model.LogisticRegression(optimizer=optim.FTRLProximal())
    scores = np.empty(min(len(log), most))
    for k in range(scores.shape[0]):
        example = {f"f{field}={value}": 1.0 for field, value in enumerate(log.ids[k].tolist())}
        if log.bag_ids.size:
            for item in log.bag_ids[log.bag_offsets[k] : log.bag_offsets[k + 1]].tolist():
                example[f"bag={item}"] = example.get(f"bag={item}", 0.0) + 1.0
        scores[k] = model.predict_proba_one(example)[True]
        model.learn_one(example, bool(log.click_ms[k] >= 0))
    return scores
