"""The command line of headrace, and the edge of every process.

Only here and in the other files of `deploy/cli` is the environment read, are signals handled and
do errors become text. An error that an operator can fix (a spec, an address, a model of another
spec) ends in one message on standard error and exit status 2. If Kafka or the store is unreachable,
the status is 75. Any other error is a bug and keeps its traceback.

Commands import the modules they need when they are called. Help is plain text: rendering it with
Rich takes longer than all imports together.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.deploy.cli import (
    data,
    demo,
    evaluate,
    experiments,
    fit,
    ingest,
    learner,
    pserver,
    run,
    runs,
    serving,
    spec,
)
from headrace.deploy.cli.options import with_topics_prefix
from headrace.deploy.process_logs import configure_logs, write_held_lines
from headrace.deploy.terminal import columns_of, wrapped
from headrace.deploy.termination import REFUSED, UNREACHABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

app = typer.Typer(
    name="headrace",
    help="Streaming online learning for click-through-rate models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("up")(run.up)
app.command("demo")(demo.demo)
app.command("check")(data.check)
app.command("status")(run.status)
app.command("fit")(fit.fit)
app.command("export")(fit.export)
app.command("suggest")(data.suggest)
app.command("warm")(run.warm)
app.add_typer(ingest.app, name="ingest")
app.add_typer(ingest.topics_app, name="topics")
app.add_typer(learner.app, name="learner")
app.add_typer(pserver.app, name="pserver")
app.add_typer(serving.app, name="serving")
app.add_typer(evaluate.app, name="evaluate")
app.add_typer(spec.app, name="spec")
app.add_typer(experiments.app, name="experiment")
app.add_typer(runs.app, name="runs")
with_topics_prefix(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"headrace {version('headrace')}")
        raise typer.Exit


@app.callback()
def _every_command(
    log_level: Annotated[
        str,
        typer.Option(
            "--log-level",
            envvar="HEADRACE_LOG_LEVEL",
            help="Least level of log lines: debug, info, warning or error.",
        ),
    ] = "info",
    log_format: Annotated[
        str,
        typer.Option(
            "--log-format",
            envvar="HEADRACE_LOG_FORMAT",
            help="Format of log lines: text or json.",
        ),
    ] = "text",
    version: Annotated[  # noqa: ARG001  (its callback has printed it)
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:
    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        raise typer.BadParameter(f"expected debug, info, warning or error, got {log_level!r}")
    if log_format not in ("text", "json"):
        raise typer.BadParameter(f"expected text or json, got {log_format!r}")
    configure_logs(level, as_json=log_format == "json")
    # child processes read both from the environment
    os.environ["HEADRACE_LOG_LEVEL"] = log_level
    os.environ["HEADRACE_LOG_FORMAT"] = log_format


def expected_errors() -> tuple[type[Exception], ...]:
    """Return the errors that an operator can fix; they are shown without a traceback."""
    from headrace.deploy.errors import DeployError
    from headrace.deploy.local.services import StackError
    from headrace.ingest import StreamError
    from headrace.ingest.features import SpecError
    from headrace.learner import LearnerError
    from headrace.pserver import StoreError
    from headrace.serving import ServingError

    return (DeployError, StackError, StreamError, SpecError, LearnerError, StoreError, ServingError)


def _documented() -> tuple[type[Exception], ...]:
    """Return the errors that docs/guides/errors.md explains; their messages end with the class."""
    from headrace.ingest import StreamError
    from headrace.learner import LearnerError
    from headrace.pserver import StoreError

    return StreamError, LearnerError, StoreError


def _worth_another_start() -> tuple[type[Exception], ...]:
    from headrace.ingest import KafkaUnreachable
    from headrace.pserver import Resharded, Unreachable

    return KafkaUnreachable, Unreachable, Resharded


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not isinstance(error, expected_errors()):
            write_held_lines()
            raise
        logging.getLogger(__name__).debug("refused", exc_info=True)
        looked_up = f" [{type(error).__name__}]" if isinstance(error, _documented()) else ""
        said = f"headrace: {error}{looked_up}"
        typer.echo(wrapped(said, columns_of(sys.stderr)), err=True)
        sys.exit(UNREACHABLE if isinstance(error, _worth_another_start()) else REFUSED)


def main() -> None:
    """Run the command line."""
    with _refusals():
        app()


if __name__ == "__main__":
    main()
