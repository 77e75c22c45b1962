"""`headrace evaluate`: how good the answers are that users get."""

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.deploy.cli.options import (
    KAFKA,
    Instance,
    KafkaAddress,
    KafkaClient,
    MetricsPort,
    ModelFile,
)

if TYPE_CHECKING:
    from headrace.ingest.kafka import KafkaSettings
    from headrace.serving.evaluation import WindowMetrics

Sample = Annotated[
    float,
    typer.Option(
        "--sample",
        envvar="HEADRACE_EVALUATION_SAMPLE",
        help="Share of the requests that are looked at, the same in all processes of a model: less "
        "than 1 where there are more than some ten thousand impressions a second.",
    ),
]
Predictions = Annotated[
    str,
    typer.Option(
        "--predictions",
        envvar="HEADRACE_PREDICTIONS_TOPIC",
        metavar="TOPIC",
        help="The topic of what was served.",
    ),
]
OfModel = Annotated[
    str,
    typer.Option("--only", metavar="NAME", help="Of this model alone.", show_default=False),
]
Slices = Annotated[bool, typer.Option("--slices", help="With the slices.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line, with every figure.")]

app = typer.Typer(help="How good the answers are that users get.", no_args_is_help=True)


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
    metrics_port: MetricsPort = 0,
) -> None:
    """Join scores and predictions with outcomes, window by window, until stopped."""
    from headrace.deploy.connections import kafka_settings
    from headrace.deploy.termination import stopped_by_signals
    from headrace.learner.spec import load_spec
    from headrace.serving.evaluation import EvaluationSettings, run_evaluation

    spec = load_spec(model)
    with stopped_by_signals() as stop:
        run_evaluation(
            EvaluationSettings(
                instance=instance,
                metrics_port=metrics_port,
                sample=sample,
                predictions=predictions,
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
    json: Json = False,
) -> None:
    """Print the figures as they were last published."""
    from headrace.deploy.connections import kafka_settings

    found = _published(kafka_settings(kafka, kafka_client), only, slices=slices)
    if json:
        import msgspec

        for each in found:
            typer.echo(msgspec.json.encode(each).decode())
        return
    from rich.console import Console

    from headrace.deploy.cli.views import table

    Console().print(table(found))


def _published(kafka: "KafkaSettings", only: str, *, slices: bool) -> "list[WindowMetrics]":
    from headrace.serving.evaluation import read_published

    return [
        each
        for each in read_published(kafka)
        if (not only or each.model == only) and (slices or each.slice == "all")
    ]
