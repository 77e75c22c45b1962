"""`headrace evaluate`: live accuracy of the served predictions."""

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.deploy.cli.options import (
    KAFKA,
    LOOPBACK,
    Instance,
    KafkaAddress,
    KafkaClient,
    MetricsHost,
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
        help="Share of the requests to evaluate. Use one value in all processes of a model. Less "
        "than 1 for more than about 10,000 impressions per second.",
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
OfModel = Annotated[
    str,
    typer.Option("--only", metavar="NAME", help="Only this model.", show_default=False),
]
Slices = Annotated[bool, typer.Option("--slices", help="Show the slices as well.")]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object per line, with every figure.")
]

app = typer.Typer(help="Evaluate the served predictions.", no_args_is_help=True)


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
    metrics_host: MetricsHost = LOOPBACK,
) -> None:
    """Join predictions with clicks and publish the accuracy of each window, until stopped."""
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
                metrics_host=metrics_host,
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
    """Print the figures that were published last."""
    from headrace.deploy.connections import kafka_settings

    found = _published(kafka_settings(kafka, kafka_client), only, slices=slices)
    if json:
        import msgspec

        for each in found:
            typer.echo(msgspec.json.encode(each).decode())
        return
    from rich.console import Console

    from headrace.deploy.views import table

    Console().print(table(found))


def _published(kafka: "KafkaSettings", only: str, *, slices: bool) -> "list[WindowMetrics]":
    from headrace.serving.evaluation import read_published

    return [
        each
        for each in read_published(kafka)
        if (not only or each.model == only) and (slices or each.slice == "all")
    ]
