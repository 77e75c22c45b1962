"""`headrace evaluate`: live accuracy of the served predictions, and the worth of inputs."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.deploy.cli.experiments.experiment_commands import ARCHIVE_FOLDER, DATA, EXIT_STOPPED
from headrace.deploy.cli.experiments.run_modes import source_of_log
from headrace.deploy.cli.options import (
    INSTANCE,
    METRICS_HOST,
    METRICS_PORT,
    MODEL,
    TABLE_LAYOUT,
    KafkaOptions,
)
from headrace.runtime.counted_nouns import counted
from headrace.runtime.settings import argument, same, setting

if TYPE_CHECKING:
    from headrace.ingest.kafka.settings import KafkaSettings
    from headrace.learner.experiments.field_importance import FieldWorth, ImportanceReport
    from headrace.serving.evaluation.windows import WindowMetrics


JSON = setting(False, "Print one JSON object per line, with every figure.", flag="--json")

BATCH_S = setting(
    600,
    "Length of a batch in event time. Examples of different batches should hardly "
    "depend on each other.",
    metavar="SECONDS",
    least=1,
)

ALPHA = setting(
    0.05,
    "Probability that at least one interval of the table misses the true value.",
    least=1e-6,
    most=0.5,
)

_LEAST_BATCHES = 10
_PUBLISH_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateRunOptions:
    """Options of `headrace evaluate run`."""

    sample: float = setting(1.0, env="HEADRACE_EVALUATION_SAMPLE")
    """Share of the requests to evaluate. Use one value in all processes of a model, below 1 for
    more than about 10,000 impressions per second."""
    predictions: str = setting("predictions", env="HEADRACE_PREDICTIONS_TOPIC", metavar="TOPIC")
    """Topic of the served predictions."""
    examples_of: str = setting("", env="HEADRACE_EXAMPLES_OF", metavar="NAME")
    """Model whose examples the learner learns. Default: the model itself."""
    window: int = setting(60, metavar="SECONDS", least=1, most=60)
    """Shortest window; two more are 10 and 60 times as long. Use one value in all processes of a
    model, and never change it. It must divide 60."""


def run(
    options: EvaluateRunOptions,
    kafka: KafkaOptions,
    model: Path = MODEL,
    instance: str = INSTANCE,
    metrics_port: int = METRICS_PORT,
    metrics_host: str = METRICS_HOST,
) -> None:
    """Join predictions with clicks and publish the accuracy of each window, until stopped."""
    from headrace.deploy.errors import BadOption
    from headrace.learner.spec.model_spec import load_spec
    from headrace.runtime.termination import stopped_by_signals
    from headrace.serving.evaluation.evaluation_process import EvaluationSettings, run_evaluation
    from headrace.serving.evaluation.windows import Windows

    if 60 % options.window:
        raise BadOption(f"--window: expected a divisor of 60, got {options.window}")
    spec = load_spec(model)
    with stopped_by_signals() as stop:
        run_evaluation(
            EvaluationSettings(
                instance=instance,
                metrics_port=metrics_port,
                metrics_host=metrics_host,
                sample=options.sample,
                predictions=options.predictions,
                examples_of=options.examples_of,
                publish_s=min(_PUBLISH_S, options.window),
                windows=Windows.shortest(options.window),
            ),
            kafka.settings(),
            spec,
            stop,
        )


def show(
    kafka: KafkaOptions,
    only: str = setting("", "Only this model.", metavar="NAME"),
    slices: bool = setting(False, "Show the slices as well."),
    as_json: bool = JSON,
) -> None:
    """Print the latest published metrics."""
    from headrace.deploy.process_logs import show_warnings_only

    show_warnings_only()

    found = _published(kafka.settings(), only, slices=slices)
    if as_json:
        import msgspec

        for each in found:
            click.echo(msgspec.json.encode(each).decode())
        return
    from rich.console import Console

    from headrace.deploy.terminal.tables import evaluation_tables

    console = Console()
    console.print(evaluation_tables(found, console))


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateCompareOptions:
    """Options of `headrace evaluate compare`."""

    alias: str = argument()
    """Alias that splits its traffic."""
    control: str = setting(metavar="MODEL")
    """Model to compare the others with."""
    cycle: int = setting(86_400, metavar="SECONDS", least=1)
    """Event time after which traffic repeats itself. A model counts as better only at the end of a
    cycle."""


def compare(
    options: EvaluateCompareOptions,
    kafka: KafkaOptions,
    batch: int = BATCH_S,
    alpha: float = ALPHA,
    as_json: bool = JSON,
) -> None:
    """Compare the models of an alias on the requests that each of them served.

    Needs a running `headrace evaluate run` for each model. The bounds are a confidence sequence:
    they hold at all comparisons at once. The verdict is `better` or `worse` than the control, or
    `undecided`. It changes no traffic.
    """
    import msgspec

    from headrace.deploy.errors import BadOption
    from headrace.serving.evaluation.served_arms import ServedArms
    from headrace.serving.evaluation.windows import read_minutes

    if batch % 60 or options.cycle % batch:
        raise BadOption(
            "--batch, --cycle: expected a batch of whole minutes and a cycle of whole batches, "
            f"got {batch} s and {options.cycle} s"
        )
    minutes = list(read_minutes(kafka.settings(), options.alias))
    found = ServedArms.of(
        minutes, options.alias, options.control, alpha, 1000 * batch, 1000 * options.cycle
    ).compare()
    if as_json:
        for each in found:
            click.echo(msgspec.json.encode(each).decode())
        return
    from rich.console import Console

    from headrace.deploy.terminal.tables import served_arms

    Console().print(served_arms(options.alias, found))


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateImportanceOptions:
    """Options of `headrace evaluate importance`."""

    fields: list[str] | None = setting(None, metavar="NAME", flag="--field")
    """Only this field or statistic. Repeatable. Default: all of the spec."""
    recent: int | None = setting(None, metavar="SECONDS", least=1)
    """Event time at the end of the log whose losses count. Default: the second half of the log."""
    as_json: bool = setting(False, flag="--json")
    """Print JSON."""


def importance(
    options: EvaluateImportanceOptions,
    model: Path = MODEL,
    data: list[str] | None = DATA,
    layout: str = TABLE_LAYOUT,
    archive: str | None = ARCHIVE_FOLDER,
    batch: int = same(BATCH_S, 3600),
    alpha: float = ALPHA,
) -> None:
    """Measure the log loss that each field and statistic of a spec saves on a log.

    For each of them, another model learns the log without it. Its losses are compared example by
    example with those of the full model. Each score is made before its example is learned.
    """
    from rich.console import Console

    from headrace.deploy.terminal.progress_bars import StepView
    from headrace.learner.experiments.field_importance import ImportanceOptions, measure_importance
    from headrace.learner.spec.model_spec import load_spec
    from headrace.runtime.termination import stopped_by_signals

    spec = load_spec(model)
    source = source_of_log(spec, data, layout, archive)
    recent_ms = None if options.recent is None else 1000 * options.recent
    measured = ImportanceOptions(tuple(options.fields or ()), 1000 * batch, recent_ms, alpha)
    with stopped_by_signals() as stop, StepView(Console(stderr=True)) as shown:
        report = measure_importance(spec, source, measured, stop, shown.importance(spec.name))
    if report is None:
        click.echo("stopped before the end of the log", err=True)
        raise click.exceptions.Exit(EXIT_STOPPED)
    if options.as_json:
        click.echo(json.dumps(_importance_as_json(report)))
    else:
        _print_importance(report, batch, alpha)


def _importance_as_json(report: "ImportanceReport") -> dict[str, object]:
    from headrace.learner.experiments.field_importance import IMPORTANCE_DEFINITION

    shown: dict[str, object] = {"definition": IMPORTANCE_DEFINITION, **report._asdict()}
    shown["worths"] = [
        {name: _finite(value) for name, value in each._asdict().items()} for each in report.worths
    ]
    return {name: _finite(value) for name, value in shown.items()}


def _finite(value: object) -> object:
    """Return None for NaN and infinity, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _print_importance(report: "ImportanceReport", batch_s: int, alpha: float) -> None:
    from datetime import UTC, datetime

    from headrace.learner.experiments.field_importance import IMPORTANCE_DEFINITION

    begin = datetime.fromtimestamp(report.begin_ms / 1000, UTC)
    click.echo(
        f"worth of an input: {IMPORTANCE_DEFINITION}\n"
        f"{counted(report.examples, 'example')} learned by each model\n"
        f"counted: {report.weight:,.0f} impressions from {begin:%Y-%m-%d %H:%M} UTC on, in "
        f"{counted(report.batches, 'batch')} of {batch_s} s\n"
        f"log loss of the full model: {report.loss:.5f}\n"
    )
    width = max([len(each.name) for each in report.worths] + [5])
    click.echo(
        f"{'input':{width}}  {'kind':10}  {'worth':>9}  {f'{1 - alpha:.0%} of all between':^21}  "
        f"{'of loss':>8}"
    )
    for each in report.worths:
        click.echo(f"{each.name:{width}}  {each.kind:10}  {_worth(each, report.loss)}")
    if report.batches < _LEAST_BATCHES:
        click.echo(
            f"\nexpected {_LEAST_BATCHES} batches or more for narrow intervals, got "
            f"{report.batches}:\nuse a longer log or a shorter --batch"
        )


def _worth(each: "FieldWorth", loss: float) -> str:
    if each.reason:
        return f"not measured: {each.reason}"
    sure = "helps" if each.low > 0 else "hurts" if each.high < 0 else "unclear"
    also = f"\n  left out with {', '.join(each.removed)}" if each.removed else ""
    return (
        f"{each.worth:+9.5f}  {each.low:+9.5f} {each.high:+10.5f}  {each.worth / loss:+8.2%}  "
        f"{sure}{also}"
    )


def _published(kafka: "KafkaSettings", only: str, *, slices: bool) -> "list[WindowMetrics]":
    from headrace.serving.evaluation.windows import read_published

    return [
        each
        for each in read_published(kafka)
        if (not only or each.model == only) and (slices or each.slice == "all")
    ]
