"""`headrace pserver snapshot` and `snapshots`: snapshots of a model."""

import json
import secrets
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from headrace.deploy.connections import open_store
from headrace.deploy.errors import BadOption
from headrace.deploy.options import MODEL, REDIS, SpecFile
from headrace.deploy.terminal.waiting_note import waiting_for
from headrace.runtime.clock import wall_ms
from headrace.runtime.counted_nouns import counted
from headrace.runtime.settings import argument, setting
from headrace.runtime.termination import stopped_by_signals

if TYPE_CHECKING:
    from headrace.pserver.snapshots.manifest import Manifest

EXIT_DAMAGED = 1
"""Exit status of `snapshots --verify` if a snapshot is damaged."""
EXIT_STOPPED = 1
"""Exit status of a command that was stopped before it was done."""
_DAY_MS = 24 * 3_600_000

PLACE = argument(
    help="Folder of snapshots, or URL such as s3://BUCKET/PATH.",
    env="HEADRACE_SNAPSHOTS",
    metavar="DIR",
)


def snapshot(
    place: str = PLACE,
    model: SpecFile = MODEL,
    redis: str = REDIS,
    parallel: int = setting(2, "Buckets to copy at the same time, in memory.", least=1),
) -> None:
    """Write the rows and marks of every bucket to files, while the model keeps learning."""
    from importlib.metadata import version

    from headrace.deploy.terminal.progress_bars import StepView
    from headrace.learner.spec.compatibility import check_compatible
    from headrace.pserver.snapshots.storage import SnapshotStorage
    from headrace.pserver.snapshots.writer import SnapshotFacts, SnapshotSettings, write_snapshot

    spec, storage = model.spec, SnapshotStorage(place)
    with closing(open_store(redis, spec.name, read_only=True)) as store:
        with waiting_for("the servers of the store"):
            check_compatible(spec, store.shape())
        with stopped_by_signals() as stop, StepView() as shown:
            written = write_snapshot(
                store,
                storage,
                SnapshotFacts(version("headrace"), store.sub_hashes),
                now_ms=wall_ms,
                token=secrets.token_hex(2),
                stop=stop,
                tell=shown.buckets(f"copying {spec.name}"),
                writing=SnapshotSettings(parallel=parallel),
            )
    say_written(written, place)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotsOptions:
    """Options of `headrace pserver snapshots`."""

    verify: bool = setting(False)
    """Read every file of the snapshots, and report damage."""
    snapshot: list[str] | None = setting(None, metavar="NAME")
    """With --verify: snapshot to verify. Repeatable. Default: all."""
    keep: int | None = setting(None, metavar="N", least=1)
    """Remove all but the newest N of each model."""
    older_than: float | None = setting(None, metavar="DAYS", least=0.0)
    """Remove only snapshots that are older."""
    dry_run: bool = setting(False)
    """With --keep or --older-than: show what would be removed."""
    as_json: bool = setting(False, flag="--json")
    """Print the list as JSON."""


def snapshots(options: SnapshotsOptions, place: str = PLACE) -> None:
    """List the snapshots, the oldest first; or verify them, or remove old ones.

    With --keep and --older-than, a snapshot is removed if neither option keeps it. Unfinished
    snapshots are removed, too. The newest complete snapshot of each model stays.
    """
    from headrace.deploy.terminal.tables import facts_of, print_table
    from headrace.pserver.snapshots.catalog import list_snapshots
    from headrace.pserver.snapshots.storage import SnapshotStorage

    removing = options.keep is not None or options.older_than is not None
    if (options.verify and removing) or (options.snapshot and not options.verify):
        raise BadOption(
            "expected --verify with --snapshot, or --keep and --older-than, got options of both"
        )
    if options.verify:
        _verify(place, options.snapshot)
    elif removing or options.dry_run:
        _prune(place, options)
    else:
        listed, now_ms = list_snapshots(SnapshotStorage(place)), wall_ms()
        if options.as_json:
            click.echo(json.dumps([facts_of(each, now_ms) for each in listed], indent=1))
        else:
            print_table(listed, now_ms)


def _verify(place: str, names: list[str] | None) -> None:
    from headrace.deploy.terminal.progress_bars import StepView
    from headrace.pserver.snapshots.catalog import list_snapshots
    from headrace.pserver.snapshots.snapshot_errors import NoSnapshot
    from headrace.pserver.snapshots.storage import SnapshotStorage
    from headrace.pserver.snapshots.verification import verify as verify_one

    storage = SnapshotStorage(place)
    listed = {each.name: each for each in list_snapshots(storage)}
    unknown = [name for name in names or () if name not in listed]
    if unknown or not listed:
        sought = ", ".join(unknown) or "a snapshot"
        raise NoSnapshot(f"expected {sought} in {place}, got {', '.join(listed) or 'none'}")
    damaged = 0
    with stopped_by_signals() as stop, StepView() as shown:
        for name in names or listed:
            manifest, problems = listed[name].manifest, list(listed[name].problems)
            if manifest is not None:
                tell = shown.buckets(f"reading {name}")
                problems = verify_one(storage, manifest, stop=stop, tell=tell)
            if stop.is_set():
                raise click.exceptions.Exit(EXIT_STOPPED)
            damaged += bool(problems)
            click.echo(f"{name}: {'damaged' if problems else 'intact'}")
            for problem in problems:
                click.echo(f"  {problem}")
    if damaged:
        raise click.exceptions.Exit(EXIT_DAMAGED)


def _prune(place: str, options: SnapshotsOptions) -> None:
    from headrace.pserver.snapshots.catalog import prunable
    from headrace.pserver.snapshots.catalog import prune as remove
    from headrace.pserver.snapshots.storage import SnapshotStorage

    if options.keep is None and options.older_than is None:
        raise BadOption("--dry-run: expected --keep N or --older-than DAYS beside it, got neither")
    older_than_ms = None if options.older_than is None else int(options.older_than * _DAY_MS)
    storage = SnapshotStorage(place)
    goes = prunable(storage, keep=options.keep, older_than_ms=older_than_ms, now_ms=wall_ms())
    if not options.dry_run:
        remove(storage, goes)
    did = "would remove" if options.dry_run else "removed"
    for each in goes.snapshots:
        rows = "unknown rows" if each.manifest is None else counted(each.manifest.rows, "row")
        click.echo(f"{did} {each.name} ({rows})")
    for leftover in goes.leftovers:
        click.echo(f"{did} {leftover.folder}, an unfinished snapshot")
    if not goes.snapshots and not goes.leftovers:
        click.echo("nothing to remove")


def say_written(written: "Manifest | None", place: str) -> None:
    """Print a summary of the snapshot. Raises Exit without one."""
    if written is None:
        click.echo("stopped: no snapshot was written", err=True)
        raise click.exceptions.Exit(EXIT_STOPPED)
    click.echo(
        f"{written.name}: {counted(written.rows, 'row')} in {counted(written.buckets, 'bucket')}, "
        f"{written.size_bytes / 1e6:,.1f} MB in {place}, "
        f"{(written.ended_ms - written.begun_ms) / 1000:.1f} s"
    )
