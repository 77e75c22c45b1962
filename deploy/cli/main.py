"""The command line of headrace, and the edge of every process.

Only in the files of `deploy/cli` are signals handled and do errors become text. Only they and
`deploy.connections` read the environment. An error that an operator can fix (a spec, an address, a
model of another spec) ends in one message on standard error and exit status 2. If Kafka or the
store is unreachable, or the model was resharded, the status is 75, and another start can help. Any
other error is a bug and keeps its traceback.

Commands import the modules they need when they are called. Help is plain text: rendering it with
Rich takes longer than all imports together.
"""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import click

from headrace.deploy.cli import data, demo, evaluate, fit, learner, run, runs, spec
from headrace.deploy.cli.commands import group
from headrace.deploy.cli.experiments import experiment_commands, experiment_promotion
from headrace.deploy.cli.ingest import (
    ingest_commands,
    ingest_dead_letters,
    ingest_replay,
    topic_commands,
)
from headrace.deploy.cli.pserver import (
    pserver_commands,
    pserver_reshard,
    pserver_restore,
    pserver_snapshots,
)
from headrace.deploy.cli.serving import (
    serving_aliases,
    serving_commands,
    serving_relay,
    serving_score,
)
from headrace.deploy.process_logs import configure_logs
from headrace.deploy.terminal.wrapped_text import columns_of, wrapped
from headrace.runtime.settings import setting
from headrace.runtime.termination import REFUSED, UNREACHABLE


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        click.echo(f"headrace {version('headrace')}")
        raise click.exceptions.Exit


@dataclass(frozen=True, slots=True, kw_only=True)
class _Logs:
    """Options before the name of a command."""

    log_level: str = setting("info", env="HEADRACE_LOG_LEVEL")
    """Least level of log lines: debug, info, warning or error."""
    log_format: str = setting("text", env="HEADRACE_LOG_FORMAT")
    """Format of log lines: text or json."""
    version: bool = setting(False, check=_print_version)
    """Show the version and exit."""


def _every_command(
    options: _Logs,
) -> None:
    level = logging.getLevelNamesMapping().get(options.log_level.upper())
    if level is None:
        raise click.BadParameter(
            f"expected debug, info, warning or error, got {options.log_level!r}"
        )
    if options.log_format not in ("text", "json"):
        raise click.BadParameter(f"expected text or json, got {options.log_format!r}")
    configure_logs(level, as_json=options.log_format == "json")
    # child processes read both from the environment
    os.environ["HEADRACE_LOG_LEVEL"] = options.log_level
    os.environ["HEADRACE_LOG_FORMAT"] = options.log_format


app = group(
    "headrace",
    "Streaming online learning for click-through-rate models.",
    run.run,
    run.up,
    demo.demo,
    data.check,
    run.status,
    fit.fit,
    fit.export,
    data.suggest,
    run.warm,
    group(
        "ingest",
        "Collect, join, replay, archive and repair events.",
        ingest_replay.replay,
        ingest_commands.collect,
        ingest_commands.topics,
        ingest_commands.join,
        ingest_commands.sink,
        ingest_dead_letters.dead_letters,
    ),
    group("topics", "Change the topics of running models.", topic_commands.grow),
    group("learner", "Learn from examples.", learner.run, learner.parked),
    group(
        "pserver",
        "Manage models in the parameter server.",
        pserver_snapshots.snapshot,
        pserver_snapshots.snapshots,
        pserver_restore.restore,
        pserver_restore.rebuild,
        pserver_reshard.reshard,
        pserver_commands.limit,
        pserver_commands.init,
        pserver_commands.keep,
        pserver_commands.inspect,
        pserver_commands.doctor,
        pserver_commands.drop,
        pserver_commands.acl,
    ),
    group(
        "serving",
        "Serve predictions.",
        serving_score.score,
        serving_relay.relay,
        serving_aliases.alias,
        serving_aliases.deploy,
        serving_commands.run,
    ),
    group(
        "evaluate",
        "Evaluate predictions.",
        evaluate.run,
        evaluate.show,
        evaluate.compare,
    ),
    spec.spec,
    group(
        "experiment",
        "Compare many arms with a control, on the same examples, and promote one.",
        experiment_promotion.promote,
        experiment_promotion.promotion,
        experiment_commands.run,
        experiment_commands.show,
    ),
    runs.runs,
    every=_every_command,
)


def expected_errors() -> tuple[type[Exception], ...]:
    """Return the errors that an operator can fix; they are shown without a traceback."""
    from headrace.deploy.errors import DeployError
    from headrace.ingest.errors import StreamError
    from headrace.ingest.features.spec_text import SpecError
    from headrace.learner.errors import LearnerError
    from headrace.pserver.errors import StoreError
    from headrace.runtime.http.http_errors import ListenError
    from headrace.serving.errors import ServingError

    ours = DeployError, SpecError, LearnerError, ServingError
    return (*ours, StreamError, StoreError, ListenError)


def _is_documented(error: Exception) -> bool:
    """Whether docs/guides/errors.md explains errors of this class; their messages end with it."""
    from headrace.ingest.errors import StreamError
    from headrace.learner.errors import LearnerError
    from headrace.pserver.errors import StoreError

    roots = StreamError, LearnerError, StoreError
    return isinstance(error, roots) and type(error) not in roots


def _worth_another_start() -> tuple[type[Exception], ...]:
    from headrace.ingest.errors import KafkaUnreachable
    from headrace.pserver.errors import Resharded, Unreachable

    return KafkaUnreachable, Unreachable, Resharded


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not isinstance(error, expected_errors()):
            raise
        logging.getLogger(__name__).debug("refused", exc_info=True)
        looked_up = f" [{type(error).__name__}]" if _is_documented(error) else ""
        said = f"headrace: {error}{looked_up}"
        click.echo(wrapped(said, columns_of(sys.stderr)), err=True)
        sys.exit(UNREACHABLE if isinstance(error, _worth_another_start()) else REFUSED)


def main() -> None:
    """Run the command line."""
    with _refusals():
        app()


if __name__ == "__main__":
    main()
