"""`headrace evaluate`: live accuracy of the served predictions."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.deploy.errors import BadOption
from headrace.deploy.options import (
    INSTANCE,
    METRICS_HOST,
    METRICS_PORT,
    MODEL,
    KafkaOptions,
    SpecFile,
    divides_a_minute,
)
from headrace.deploy.process_logs import show_warnings_only
from headrace.deploy.terminal.json_lines import print_json_lines
from headrace.runtime.settings import argument, setting
from headrace.runtime.termination import stopped_by_signals

if TYPE_CHECKING:
    from headrace.ingest.kafka.settings import KafkaSettings
    from headrace.serving.evaluation.windows import WindowMetrics


JSON = setting(False, "Print one JSON object per line, with every figure.", flag="--json")

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
    window: int = setting(60, metavar="SECONDS", least=1, most=60, check=divides_a_minute)
    """Shortest window; two more are 10 and 60 times as long. Use one value in all processes of a
    model, and never change it. It must divide 60."""


def run(
    options: EvaluateRunOptions,
    kafka: KafkaOptions,
    model: SpecFile = MODEL,
    instance: str = INSTANCE,
    metrics_port: int = METRICS_PORT,
    metrics_host: str = METRICS_HOST,
) -> None:
    """Join predictions with clicks and publish the accuracy of each window, until stopped."""
    from headrace.serving.evaluation.evaluation_process import EvaluationSettings, run_evaluation
    from headrace.serving.evaluation.windows import Windows

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
            model.spec,
            stop,
        )


def show(
    kafka: KafkaOptions,
    only: str = setting("", "Only this model.", metavar="NAME"),
    slices: bool = setting(False, "Show the slices as well."),
    as_json: bool = JSON,
) -> None:
    """Print the latest published metrics."""
    show_warnings_only()
    found = _published(kafka.settings(), only, slices=slices)
    if as_json:
        print_json_lines(found)
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
    batch: int = setting(600, metavar="SECONDS", least=1)
    """Length of a batch in event time. Examples of different batches should hardly depend on each
    other."""
    alpha: float = setting(0.05, least=1e-6, most=0.5)
    """Probability that at least one interval of the table misses the true value."""
    window: int = setting(60, metavar="SECONDS", least=1, most=60, check=divides_a_minute)
    """Shortest window: --window of `headrace evaluate run`."""


def compare(
    options: EvaluateCompareOptions,
    kafka: KafkaOptions,
    as_json: bool = JSON,
) -> None:
    """Compare the models of an alias on the requests that each of them served.

    Needs a running `headrace evaluate run` for each model. The bounds are a confidence sequence:
    they hold at all comparisons at once. The verdict is `better` or `worse` than the control, or
    `undecided`. It changes no traffic.
    """
    from headrace.serving.evaluation.served_arms import compare_arms
    from headrace.serving.evaluation.windows import read_minutes

    if options.batch % 60 or options.cycle % options.batch:
        raise BadOption(
            "--batch, --cycle: expected a batch of whole minutes and a cycle of whole batches, "
            f"got {options.batch} s and {options.cycle} s"
        )
    minutes = list(read_minutes(kafka.settings(), options.alias, window_s=options.window))
    found = compare_arms(
        minutes,
        options.alias,
        options.control,
        options.alpha,
        1000 * options.batch,
        1000 * options.cycle,
        1000 * options.window,
    )
    if as_json:
        print_json_lines(found)
        return
    from rich.console import Console

    from headrace.deploy.terminal.tables import served_arms

    Console().print(served_arms(options.alias, found))


def _published(kafka: "KafkaSettings", only: str, *, slices: bool) -> "list[WindowMetrics]":
    from headrace.serving.evaluation.windows import read_published

    return [
        each
        for each in read_published(kafka)
        if (not only or each.model == only) and (slices or each.slice == "all")
    ]
