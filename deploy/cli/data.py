"""`headrace check` and `headrace suggest`: read a log on disk, and start nothing."""

from pathlib import Path
from typing import Annotated

import typer

from headrace.deploy.cli.options import LayoutName, ModelFile, Sort, layout_of

Log = Annotated[
    Path,
    typer.Argument(
        metavar="DATA",
        help="Directory with impressions.ndjson[.zst] and clicks.ndjson[.zst], or a CSV, Parquet "
        "or NDJSON file.",
        show_default=False,
    ),
]


def check(
    data: Log,
    model: ModelFile,
    layout: LayoutName = "",
    sort: Sort = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check a log against a model spec: refusals, missing fields, order, clicks. Starts no process.

    The exit status is 2 if the log is empty, lacks the fields of the spec or has them under another
    name, if more than half of its impressions or of its events would be refused, or if every
    impression has a click.
    """
    from dataclasses import asdict

    import orjson

    from headrace.deploy.termination import REFUSED
    from headrace.ingest.survey import survey_log
    from headrace.learner.spec import load_spec

    columns = layout_of(layout, [data])
    found = survey_log(data, load_spec(model).fields, columns, sort=sort)
    if json:
        warnings = {"warnings": found.warnings(), "unusable": found.unusable}
        typer.echo(orjson.dumps(asdict(found) | warnings, option=orjson.OPT_INDENT_2))
    else:
        typer.echo(found.in_words())
    if found.unusable:
        if not json:
            typer.echo(f"{found.refusal}. `headrace run` would not start", err=True)
        raise typer.Exit(REFUSED)


def suggest(
    data: Log,
    layout: LayoutName = "",
    name: Annotated[
        str, typer.Option("--name", help="Name of the model. Default: from the name of the log.")
    ] = "",
    architecture: Annotated[
        str,
        typer.Option(
            "--architecture",
            help="Architecture of the model: "
            "logistic_regression, factorization_machine, deepfm, dcn_v2 ...",
        ),
    ] = "logistic_regression",
) -> None:
    """Print a commented model spec for a log, from its first 300,000 impressions.

    Redirect it to a file, edit it, and give it to `headrace check` and `headrace run`.
    """
    from headrace.learner.suggestion import NO_CLICKS, suggest_spec

    columns = layout_of(layout, [data])
    spec = suggest_spec(data, columns, name, architecture)
    typer.echo(spec, nl=False)
    if NO_CLICKS in spec:
        # a user who redirects the spec to a file does not see its comments
        typer.echo(f"# warning: {NO_CLICKS}", err=True)
