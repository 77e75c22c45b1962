"""`headrace evaluate`: live accuracy of the served predictions, and the worth of inputs."""

import json
import math
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.counted_nouns import counted
from headrace.deploy.cli.experiments import (
    EXIT_STOPPED,
    ArchiveFolder,
    Data,
    source_of_log,
)
from headrace.deploy.cli.options import (
    KAFKA,
    LOOPBACK,
    Instance,
    KafkaAddress,
    KafkaClient,
    MetricsHost,
    MetricsPort,
    ModelFile,
    TableLayout,
)

if TYPE_CHECKING:
    from headrace.ingest.kafka import KafkaSettings
    from headrace.learner.experiments import FieldWorth, ImportanceReport
    from headrace.serving.evaluation import WindowMetrics

Sample = Annotated[
    float,
    typer.Option(
        "--sample",
        envvar="HEADRACE_EVALUATION_SAMPLE",
        help="Share of the requests to evaluate. Use one value in all processes of a model, "
        "below 1 for more than about 10,000 impressions per second.",
    ),
]
EvaluatedExamples = Annotated[
    str,
    typer.Option(
        "--examples-of",
        envvar="HEADRACE_EXAMPLES_OF",
        metavar="NAME",
        help="Model whose examples the learner learns. Default: the model itself.",
        show_default=False,
    ),
]
Predictions = Annotated[
    str,
    typer.Option(
        "--predictions",
        envvar="HEADRACE_PREDICTIONS_TOPIC",
        metavar="TOPIC",
        help="Topic of the served predictions.",
    ),
]
WindowS = Annotated[
    int,
    typer.Option(
        "--window",
        min=1,
        max=60,
        metavar="SECONDS",
        help="Shortest window; two more are 10 and 60 times as long. Use one value in all "
        "processes of a model, and never change it. It must divide 60.",
    ),
]
OfModel = Annotated[
    str,
    typer.Option("--only", metavar="NAME", help="Only this model.", show_default=False),
]
Slices = Annotated[bool, typer.Option("--slices", help="Show the slices as well.")]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object per line, with every figure.")
]
Names = Annotated[
    list[str] | None,
    typer.Option(
        "--field",
        metavar="NAME",
        help="Only this field or statistic. Repeatable. Default: all of the spec.",
        show_default=False,
    ),
]
BatchS = Annotated[
    int,
    typer.Option(
        "--batch",
        min=1,
        metavar="SECONDS",
        help="Length of a batch in event time. Examples of different batches should hardly "
        "depend on each other.",
    ),
]
RecentS = Annotated[
    int | None,
    typer.Option(
        "--recent",
        min=1,
        metavar="SECONDS",
        help="Event time at the end of the log whose losses count. Default: the second half of "
        "the log.",
        show_default=False,
    ),
]
Alpha = Annotated[
    float,
    typer.Option(
        "--alpha",
        min=1e-6,
        max=0.5,
        help="Probability that at least one interval of the table misses the true value.",
    ),
]
JsonReport = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_LEAST_BATCHES = 10
_PUBLISH_S = 5.0

app = typer.Typer(help="Evaluate predictions and inputs.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    pass


@app.command()
def run(
    model: ModelFile,
    kafka: KafkaAddress = KAFKA,
    kafka_client: KafkaClient = None,
    instance: Instance = "",
    sample: Sample = 1.0,
    predictions: Predictions = "predictions",
    examples_of: EvaluatedExamples = "",
    window: WindowS = 60,
    metrics_port: MetricsPort = 0,
    metrics_host: MetricsHost = LOOPBACK,
) -> None:
    """Join predictions with clicks and publish the accuracy of each window, until stopped."""
    from headrace.deploy.connections import kafka_settings
    from headrace.deploy.errors import BadOption
    from headrace.deploy.termination import stopped_by_signals
    from headrace.learner.spec import load_spec
    from headrace.serving.evaluation import EvaluationSettings, Windows, run_evaluation

    if 60 % window:
        raise BadOption(f"--window: expected a divisor of 60, got {window}")
    spec = load_spec(model)
    with stopped_by_signals() as stop:
        run_evaluation(
            EvaluationSettings(
                instance=instance,
                metrics_port=metrics_port,
                metrics_host=metrics_host,
                sample=sample,
                predictions=predictions,
                examples_of=examples_of,
                publish_s=min(_PUBLISH_S, window),
                windows=Windows.shortest(window),
            ),
            kafka_settings(kafka, kafka_client),
            spec,
            stop,
        )


@app.command()
def show(
    kafka: KafkaAddress = KAFKA,
    kafka_client: KafkaClient = None,
    only: OfModel = "",
    slices: Slices = False,
    as_json: Json = False,
) -> None:
    """Print the latest published metrics."""
    from headrace.deploy.connections import kafka_settings
    from headrace.deploy.process_logs import show_warnings_only

    show_warnings_only()

    found = _published(kafka_settings(kafka, kafka_client), only, slices=slices)
    if as_json:
        import msgspec

        for each in found:
            typer.echo(msgspec.json.encode(each).decode())
        return
    from rich.console import Console

    from headrace.deploy.terminal import evaluation_tables

    console = Console()
    console.print(evaluation_tables(found, console))


@app.command()
def compare(
    alias: Annotated[str, typer.Argument(help="Alias that splits its traffic.")],
    control: Annotated[
        str, typer.Option("--control", metavar="MODEL", help="Model to compare the others with.")
    ],
    kafka: KafkaAddress = KAFKA,
    kafka_client: KafkaClient = None,
    batch: BatchS = 600,
    cycle: Annotated[
        int,
        typer.Option(
            "--cycle",
            min=1,
            metavar="SECONDS",
            help="Event time after which traffic repeats itself. A model counts as better only at "
            "the end of a cycle.",
        ),
    ] = 86_400,
    alpha: Alpha = 0.05,
    as_json: Json = False,
) -> None:
    """Compare the models of an alias on the requests that each of them served.

    Needs a running `headrace evaluate run` for each model. The bounds are a confidence sequence:
    they hold at all comparisons at once. The verdict is `better` or `worse` than the control, or
    `undecided`. It changes no traffic.
    """
    import msgspec

    from headrace.deploy.connections import kafka_settings
    from headrace.deploy.errors import BadOption
    from headrace.serving.evaluation import ServedArms, read_minutes

    if batch % 60 or cycle % batch:
        raise BadOption(
            "--batch, --cycle: expected a batch of whole minutes and a cycle of whole batches, "
            f"got {batch} s and {cycle} s"
        )
    minutes = list(read_minutes(kafka_settings(kafka, kafka_client), alias))
    found = ServedArms.of(minutes, alias, control, alpha, 1000 * batch, 1000 * cycle).compare()
    if as_json:
        for each in found:
            typer.echo(msgspec.json.encode(each).decode())
        return
    from rich.console import Console

    from headrace.deploy.terminal import served_arms

    Console().print(served_arms(alias, found))


@app.command()
def importance(
    model: ModelFile,
    data: Data = None,
    layout: TableLayout = "",
    archive: ArchiveFolder = None,
    fields: Names = None,
    recent: RecentS = None,
    batch: BatchS = 3600,
    alpha: Alpha = 0.05,
    as_json: JsonReport = False,
) -> None:
    """Measure the log loss that each field and statistic of a spec saves on a log.

    For each of them, another model learns the log without it. Its losses are compared example by
    example with those of the full model. Each score is made before its example is learned.
    """
    from rich.console import Console

    from headrace.deploy.terminal import StepView
    from headrace.deploy.termination import stopped_by_signals
    from headrace.learner.experiments import ImportanceOptions, measure_importance
    from headrace.learner.spec import load_spec

    spec = load_spec(model)
    source = source_of_log(spec, data, layout, archive)
    recent_ms = None if recent is None else 1000 * recent
    options = ImportanceOptions(tuple(fields or ()), 1000 * batch, recent_ms, alpha)
    with stopped_by_signals() as stop, StepView(Console(stderr=True)) as shown:
        report = measure_importance(spec, source, options, stop, shown.importance(spec.name))
    if report is None:
        typer.echo("stopped before the end of the log", err=True)
        raise typer.Exit(EXIT_STOPPED)
    if as_json:
        typer.echo(json.dumps(_importance_as_json(report)))
    else:
        _print_importance(report, batch, alpha)


def _importance_as_json(report: "ImportanceReport") -> dict[str, object]:
    from headrace.learner.experiments import IMPORTANCE_DEFINITION

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

    from headrace.learner.experiments import IMPORTANCE_DEFINITION

    begin = datetime.fromtimestamp(report.begin_ms / 1000, UTC)
    typer.echo(
        f"worth of an input: {IMPORTANCE_DEFINITION}\n"
        f"{counted(report.examples, 'example')} learned by each model\n"
        f"counted: {report.weight:,.0f} impressions from {begin:%Y-%m-%d %H:%M} UTC on, in "
        f"{counted(report.batches, 'batch')} of {batch_s} s\n"
        f"log loss of the full model: {report.loss:.5f}\n"
    )
    width = max([len(each.name) for each in report.worths] + [5])
    typer.echo(
        f"{'input':{width}}  {'kind':10}  {'worth':>9}  {f'{1 - alpha:.0%} of all between':^21}  "
        f"{'of loss':>8}"
    )
    for each in report.worths:
        typer.echo(f"{each.name:{width}}  {each.kind:10}  {_worth(each, report.loss)}")
    if report.batches < _LEAST_BATCHES:
        typer.echo(
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
    from headrace.serving.evaluation import read_published

    return [
        each
        for each in read_published(kafka)
        if (not only or each.model == only) and (slices or each.slice == "all")
    ]
