"""`headrace check` and `headrace suggest`: read a log on disk, and start nothing."""

from pathlib import Path

import click

from headrace.deploy.options import LAYOUT_NAME, MODEL, SORT, SpecFile, layout_of
from headrace.runtime.settings import argument, setting
from headrace.runtime.termination import REFUSED

LOG = argument(
    help="Directory with impressions.ndjson[.zst] and clicks.ndjson[.zst], or a CSV, Parquet "
    "or NDJSON file.",
    metavar="DATA",
)


def check(
    data: Path = LOG,
    model: SpecFile = MODEL,
    layout: str = LAYOUT_NAME,
    sort: bool = SORT,
    json: bool = setting(False, "Print one JSON object."),
) -> None:
    """Check a log against a model spec: refusals, missing fields, order, clicks. Starts no process.

    The exit status is 2 if the log is empty, if every impression has a click, if more than half of
    the impressions or of the events would be refused, or if the log lacks the fields of the spec
    or names one differently.
    """
    from dataclasses import asdict

    import orjson

    from headrace.ingest.survey.log_survey import survey_log

    columns = layout_of(layout, [data])
    found = survey_log(data, model.spec.fields, columns, sort=sort)
    if json:
        warnings = {"warnings": found.warnings(), "unusable": found.unusable}
        click.echo(orjson.dumps(asdict(found) | warnings, option=orjson.OPT_INDENT_2))
    else:
        click.echo(found.in_words())
    if found.unusable:
        if not json:
            click.echo(f"{found.refusal}. `headrace run` would not start", err=True)
        raise click.exceptions.Exit(REFUSED)


def suggest(
    data: Path = LOG,
    layout: str = LAYOUT_NAME,
    name: str = setting("", "Name of the model. Default: from the name of the log."),
    architecture: str = setting(
        "logistic_regression",
        "Architecture of the model: logistic_regression, factorization_machine, deepfm, dcn_v2 ...",
    ),
    seconds: float = setting(
        60.0, "Longest search for statistics, crosses and constants. 0: rules alone.", least=0.0
    ),
) -> None:
    """Print a commented model spec for a log, from its first 300,000 impressions.

    If they have 500 clicks, a search learns them in memory and adds what lowers the log loss of
    later impressions. Standard error shows what it tried. Redirect the spec to a file, edit it, and
    give it to `headrace check` and `headrace run`.
    """
    from headrace.deploy.terminal.progress_bars import StepView
    from headrace.deploy.terminal.tables import print_shown, search_table
    from headrace.learner.suggestion.spec_suggestion import suggest_spec

    columns = layout_of(layout, [data])
    with StepView() as shown:
        found = suggest_spec(data, columns, name, architecture, seconds, shown.search(data.name))
    click.echo(found.text, nl=False)
    if found.searched is not None:
        print_shown(search_table(found.searched), err=True)
    for warning in found.warnings:
        # a user who redirects the spec to a file does not see its comments
        click.echo(f"# warning: {warning}", err=True)
