"""`headrace runs`: the runs that were recorded, and what they differ in."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.deploy.errors import BadOption
from headrace.deploy.options import RUNS_FOLDER, TRACK_URI
from headrace.deploy.terminal.json_lines import print_json_lines
from headrace.deploy.terminal.wrapped_text import columns_of
from headrace.runtime.settings import argument, setting

if TYPE_CHECKING:
    from headrace.deploy.reports.tracking.run_recorder import RunOutputs
    from headrace.deploy.reports.tracking.run_registry import RunRegistry
    from headrace.deploy.reports.tracking.tracked_run import TrackedRun


OFF = "off"


def registry_of(folder: str) -> "RunRegistry | None":
    """Return the registry of `--runs`; None if runs are not recorded (off).

    A user of a container may have no home. Runs are then recorded with --runs only.
    """
    from headrace.deploy.reports.tracking.run_registry import RunRegistry

    try:
        return RunRegistry(folder_of(folder))
    except BadOption:
        return None


def run_outputs(runs: str, track: str) -> "RunOutputs":
    """Return the outputs of `--runs` and `--track`."""
    from headrace.deploy.reports.tracking.mlflow_target import MlflowTarget
    from headrace.deploy.reports.tracking.run_recorder import RunOutputs

    return RunOutputs(registry_of(runs), MlflowTarget(track) if track else None)


def folder_of(folder: str) -> Path:
    """Return the folder of `--runs`, by default in the user's folder of state. Raises BadOption."""
    if folder == OFF:
        raise BadOption(
            "--runs / HEADRACE_RUNS: expected the folder of recorded runs, got off. Give "
            '--runs DIR, or --runs "" for the default folder'
        )
    if folder:
        return Path(folder).expanduser()
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    try:
        return Path(state).expanduser() / "headrace" / "runs"
    except RuntimeError as error:
        raise BadOption(
            "--runs: expected a folder, since this user has no home, got none"
        ) from error


@dataclass(frozen=True, slots=True)
class RunsOptions:
    """Options of `headrace runs`."""

    chosen: list[str] | None = argument(None, metavar="[RUN]...")
    """Ids of runs, or their first characters. RUN/ARM: one arm of an experiment."""
    arms: bool = setting(False)
    """With one run: compare the arms of this experiment."""
    as_json: bool = setting(False, flag="--json")
    """Print JSON."""
    patience: float = setting(300.0, metavar="SECONDS", least=0.0)
    """With --track: longest time to wait for the server."""


def runs(
    options: RunsOptions,
    runs: str = RUNS_FOLDER,
    track: str = TRACK_URI,
) -> None:
    """List the recorded runs, the oldest first; show one; or compare several.

    One run is shown with its spec, version, data, figures and decisions. Several are compared by
    the settings that differ, with figures side by side. With --track, the runs are sent whole to an
    MLflow server; a repeated export updates the same run.
    """
    from headrace.deploy.reports.tracking.run_registry import find_run, stored_runs

    all_runs = stored_runs(folder_of(runs))
    found = [find_run(each, all_runs) for each in options.chosen or ()]
    if options.arms:
        found = [arm for each in found for arm in each.arms]
    if (options.arms and len(found) < 2) or (track and not found):
        got = (options.chosen or ["none"])[0]
        raise BadOption(f"expected the id of a run, with --arms one that has arms, got {got}")
    if track:
        _export(found, runs, track, options.patience)
    elif not found:
        _list(all_runs, runs, as_json=options.as_json)
    elif len(found) == 1:
        _show(found[0], runs, as_json=options.as_json)
    else:
        _compare(found, as_json=options.as_json)


def _list(found: "list[TrackedRun]", runs: str, *, as_json: bool) -> None:
    if as_json:
        print_json_lines(found)
        return
    width = max((len(run.id) for run in found), default=0)
    # a pipe gets one line for each run
    columns = columns_of(sys.stdout)
    for run in found:
        head = f"{run.id:{width}}  {run.kind:10} {run.state:10}"
        click.echo(in_columns(head, _brief(run), columns))
    if not found:
        click.echo(f"no runs in {folder_of(runs)}", err=True)


def _show(found: "TrackedRun", runs: str, *, as_json: bool) -> None:
    from headrace.deploy.reports.tracking.run_comparison import described

    if as_json:
        print_json_lines([found])
        return
    lines = {"begun": _moment(found.begun_ms), **described(found)}
    lines |= {name: f"{value:,.6g}" for name, value in found.figures.items()}
    if found.reason:
        lines["reason"] = found.reason
    if found.report:
        lines["report"] = str(folder_of(runs) / found.id / found.report)
    width = max(map(len, lines))
    click.echo(found.id)
    for name, text in lines.items():
        click.echo(f"{name:{width}}  {text}")
    for decision in found.decisions:
        click.echo(decision)


def _compare(found: "list[TrackedRun]", *, as_json: bool) -> None:
    import json

    from headrace.deploy.reports.tracking.run_comparison import compare_runs

    compared = compare_runs(found)
    if as_json:
        click.echo(json.dumps(compared._asdict()))
        return
    for line in compared.lines():
        click.echo(line)


def _export(found: "list[TrackedRun]", runs: str, track: str, patience_s: float) -> None:
    from headrace.deploy.reports.tracking.mlflow_target import MlflowTarget

    tracker = MlflowTarget(track)
    sent = [tracker.export(run, folder_of(runs) / run.id, patience_s) for run in found]
    if not all(sent):
        raise click.exceptions.Exit(1)


def in_columns(head: str, brief: str, columns: int | None) -> str:
    """Return the line of a run, or two lines if it has more than this many columns."""
    line = f"{head} {brief}"
    if columns is None or len(line) <= columns:
        return line
    return f"{head.rstrip()}\n  {brief}"


def _brief(run: "TrackedRun") -> str:
    """Return the figures of a run that identify it in a list."""
    shown = [_moment(run.begun_ms), run.name]
    shown += [
        f"{name} {run.figures[name]:,.5g}"
        for name in (
            "arms",
            "impressions",
            "log_loss",
            "control_log_loss",
            "auc",
            "difference",
            "share",
            "scored_after_ms",
        )
        if name in run.figures
    ]
    return "  ".join(shown)


def _moment(at_ms: int) -> str:
    from datetime import UTC, datetime

    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M} UTC" if at_ms else "-"
