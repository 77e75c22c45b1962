"""`headrace pserver restore` and `rebuild`: models from snapshots."""

from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.deploy.cli.learner import EXAMPLES_OF
from headrace.deploy.cli.pserver.pserver_snapshots import (
    EXIT_STOPPED,
    PLACE,
    say_written,
)
from headrace.deploy.connections import kafka_settings, open_store
from headrace.deploy.errors import BadOption
from headrace.deploy.options import BUCKETS, KAFKA_CLIENT, MODEL, REDIS, KafkaOptions, SpecFile
from headrace.runtime.counted_nouns import counted
from headrace.runtime.settings import argument, setting
from headrace.runtime.termination import stopped_by_signals

if TYPE_CHECKING:
    from headrace.ingest.kafka.settings import KafkaSettings
    from headrace.learner.recovery.restore import RestorePlan, RestoreSettings
    from headrace.learner.spec.model_spec import ModelSpec
    from headrace.learner.spec.warm_start import KeptRows
    from headrace.pserver.snapshots.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class PserverRestoreOptions:
    """Options of `headrace pserver restore`."""

    place: str | None = argument(None, env="HEADRACE_SNAPSHOTS", metavar="DIR")
    """Folder of snapshots, or URL such as s3://BUCKET/PATH."""
    name: str | None = setting(None, metavar="NAME", flag="--snapshot")
    """Snapshot to restore. Default: the newest of the model."""
    copy: Path | None = setting(None, metavar="FILE", flag="--as")
    """Spec with the new name. The guide to model specs lists the keys that may differ."""
    warm: bool = setting(False)
    """Warm start: the spec of --as has more fields or statistics and starts with the rows of this
    model. It learns its own examples."""
    kafka: str | None = setting(None, env="HEADRACE_KAFKA", metavar="HOST:PORT")
    """With --warm: Kafka bootstrap servers. If set, the new model starts after the events that the
    snapshot has learned, and its joiner must have passed them. Default: it starts at its first
    example."""
    buckets: int | None = setting(None, least=1)
    """Number of buckets: a power of two, a multiple of the snapshot's. Default: that of the model
    in the store, or of the snapshot."""
    no_verify: bool = setting(False)
    """Skip the check of all files and digests before the restore."""
    empty: bool = setting(False)
    """Create the missing buckets without rows. Learners read all examples again, if Kafka still has
    them."""


def restore(
    options: PserverRestoreOptions,
    model: SpecFile = MODEL,
    redis: str = REDIS,
    kafka_client: list[str] | None = KAFKA_CLIENT,
) -> None:
    """Restore the buckets that are missing in the store. Learners then catch up from Kafka.

    If interrupted, run it again: it resumes.
    """
    from headrace.learner.recovery.restore import RestoreSettings

    settings = RestoreSettings(
        options.name, options.copy, options.warm, options.buckets, trusting=options.no_verify
    )
    if options.warm and options.copy is None:
        raise BadOption("--warm: expected --as FILE as well, the spec of the larger model")
    source = click.get_current_context().get_parameter_source("kafka")
    # a variable of the environment may be meant for other commands of the fleet
    if not options.warm and source is not None and source.name == "COMMANDLINE":
        raise BadOption(
            "--kafka: expected --warm as well; without it the marks of the snapshot apply"
        )
    if options.empty:
        if options.name is not None or options.copy is not None:
            raise BadOption("--empty: expected neither --snapshot nor --as with it")
        _restore_empty(model.spec, redis, options.buckets)
    elif options.place is None:
        raise BadOption("expected DIR / HEADRACE_SNAPSHOTS, or --empty, got neither")
    else:
        after = (
            kafka_settings(options.kafka, kafka_client)
            if options.warm and options.kafka is not None
            else None
        )
        _restore_from(options.place, model.spec, redis, settings, after)


def _restore_empty(spec: "ModelSpec", redis: str, buckets: int | None) -> None:
    from headrace.learner.recovery.restore import restore_empty

    with closing(open_store(redis, spec.name)) as store:
        filled = restore_empty(store, spec, buckets)
    if not filled:
        click.echo(f"{spec.name}: no bucket is missing, nothing to do")
        return
    shown = ", ".join(map(str, filled))
    click.echo(
        f"{spec.name}: {counted(len(filled), 'bucket is', 'buckets are')} empty now: {shown}. "
        "Learners read all their examples again; if Kafka no longer has them from offset 0, "
        "learners stop and name the gap"
    )


def sub_hashes_of(manifest: "Manifest", settings: "RestoreSettings") -> int:
    """Return the sub-hashes of a bucket: as in the snapshot, unless the bucket count changes."""
    from headrace.pserver.rows.row_codec import sub_hashes_for

    had, before = manifest.sub_hashes, manifest.shape.buckets
    buckets = settings.buckets or before
    if buckets == before:
        return had
    suiting = sub_hashes_for(buckets, had * before)
    return suiting if buckets < before else min(had, suiting)


def _restore_from(
    place: str,
    spec: "ModelSpec",
    redis: str,
    settings: "RestoreSettings",
    kafka: "KafkaSettings | None",
) -> None:
    from headrace.deploy.terminal.progress_bars import StepView
    from headrace.learner.recovery.restore import choose, restore_model
    from headrace.pserver.snapshots.storage import SnapshotStorage

    storage = SnapshotStorage(place)
    wanted = choose(storage, spec, settings)
    manifest, to, warm = wanted
    marks = _marks_after(kafka, wanted) if kafka is not None else None
    # a model whose shape was lost with its shard gets the layout of its remaining buckets
    sub_hashes = sub_hashes_of(manifest, settings)
    with (
        closing(open_store(redis, to.name, sub_hashes=sub_hashes)) as store,
        stopped_by_signals() as stop,
        StepView() as shown,
    ):
        restored = restore_model(
            store,
            storage,
            wanted,
            settings,
            marks=marks,
            stop=stop,
            tell_verified=shown.buckets(f"verifying {manifest.name}"),
            tell_restored=shown.buckets(f"restoring {to.name}"),
        )
    if restored is None or not restored.complete:
        click.echo(f"{to.name}: stopped before the restore was complete; run it again", err=True)
        raise click.exceptions.Exit(EXIT_STOPPED)
    if not restored.buckets:
        click.echo(f"{to.name}: no bucket is missing, nothing to do")
        return
    click.echo(
        f"{to.name}: {counted(len(restored.buckets), 'bucket')} with "
        f"{counted(restored.rows, 'row')} restored from {manifest.name}; learners "
        f"{_starting_point(to.name, marks, warm)}"
    )


def _marks_after(kafka: "KafkaSettings", wanted: "RestorePlan") -> dict[str, int]:
    from headrace.ingest.joiner.committed_state import read_state
    from headrace.learner.recovery.restore import examples_after

    beginning, marks = examples_after(kafka, wanted)
    if beginning.waiting:
        shown = ", ".join(str(source.partition) for source in beginning.waiting)
        check_joined(wanted.spec.name, shown, wanted.moment_ms, read_state(kafka, wanted.spec).lag)
    return marks


def check_joined(model: str, partitions: str, moment_ms: int, lag: int) -> None:
    """Raise RecoveryRefused if a joiner with this lag may still write examples before a moment.

    partitions: those whose examples end before the moment. They have no later event if the joiner
    has joined everything.
    """
    from headrace.learner.errors import RecoveryRefused

    if lag:
        raise RecoveryRefused(
            f"{model}: expected examples after {moment_text(moment_ms)} in partitions {partitions},"
            f" got none yet, and its joiner is {counted(lag, 'event')} behind: examples that it "
            "writes from before then would be learned a second time. Wait until "
            "headrace_joiner_lag is 0, then restore again"
        )


def _starting_point(name: str, marks: dict[str, int] | None, warm: "KeptRows | None") -> str:
    if warm is None:
        return "continue from its marks"
    where = "from the first one" if marks is None else "after those it has learned"
    new = f"; without rows: {', '.join(warm.new)}" if warm.new else ""
    layers = "" if warm.layers else "; layers, if it has any, start untrained"
    return f"read the examples of {name} {where}{new}{layers}"


def rebuild(
    kafka: KafkaOptions,
    place: str = PLACE,
    model: SpecFile = MODEL,
    as_of: str = setting(
        help="Learn the examples appended to the topic before this time: ISO 8601 (UTC without "
        "an offset), or milliseconds since 1970.",
        metavar="TIME",
    ),
    start: str | None = setting(
        None,
        "Snapshot to start with, or `beginning` for no rows. Default: the newest snapshot "
        "from before TIME, or the beginning.",
        metavar="NAME",
        flag="--from",
    ),
    examples_of: str = EXAMPLES_OF,
    buckets: int = BUCKETS,
) -> None:
    """Rebuild the model of a past time from a snapshot and examples, as a new snapshot in DIR.

    Reads Kafka and DIR but no store. --buckets applies to a model that starts with no rows.
    """
    from importlib.metadata import version

    from headrace.deploy.terminal.progress_bars import StepView
    from headrace.learner.recovery.rebuilder import RebuildSettings, open_rebuild
    from headrace.learner.recovery.rebuilder import rebuild as rebuild_model
    from headrace.pserver.snapshots.storage import SnapshotStorage

    spec, storage = model.spec, SnapshotStorage(place)
    settings = RebuildSettings(moment_ms(as_of), start, examples_of, buckets)
    rebuilding = open_rebuild(settings, kafka.settings(), spec, storage)
    begin = rebuilding.manifest.name if rebuilding.manifest else "no rows"
    click.echo(f"{spec.name}: starting with {begin}", err=True)
    with closing(rebuilding.reader), stopped_by_signals() as stop, StepView() as shown:
        written = rebuild_model(
            rebuilding,
            version("headrace"),
            stop=stop,
            tell_restored=shown.buckets("reading the snapshot"),
            tell_replayed=shown.replay("learning again"),
            tell_written=shown.buckets("writing"),
        )
    say_written(written, place)


def moment_text(at_ms: int) -> str:
    """Return a time in ISO 8601."""
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def moment_ms(text: str) -> int:
    """Return a time in milliseconds since 1970. Raises BadOption."""
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadOption(
            "--as-of: expected a time such as 2026-11-20T18:30:00Z, or milliseconds since 1970, "
            f"got {text!r}"
        ) from error
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)
