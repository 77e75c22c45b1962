"""`headrace pserver restore` and `rebuild`: what snapshots are for."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.commands.learner import ExamplesOf
from deploy.commands.options import (
    KAFKA,
    REDIS,
    Buckets,
    KafkaAddress,
    KafkaClient,
    ModelFile,
    RedisUrl,
)
from deploy.commands.pserver_snapshots import EXIT_STOPPED, Place, say_written, version_here
from deploy.errors import BadOption

if TYPE_CHECKING:
    from deploy.restore import RestoreSettings
    from learner.spec import ModelSpec

Named = Annotated[
    str | None,
    typer.Option("--snapshot", metavar="NAME", help="This one. Default: the model's newest."),
]


def register(app: typer.Typer) -> None:
    """Add the commands to the group `pserver`."""
    for command in (restore, rebuild):
        app.command()(command)


def restore(
    model: ModelFile,
    place: Annotated[
        str | None,
        typer.Argument(
            metavar="DIR",
            envvar="HEADRACE_SNAPSHOTS",
            help="Where snapshots lie: a folder, or a URL such as s3://BUCKET/PATH.",
            show_default=False,
        ),
    ] = None,
    redis: RedisUrl = REDIS,
    name: Named = None,
    copy: Annotated[
        Path | None,
        typer.Option(
            "--as",
            metavar="FILE",
            help="Restore as the model of this spec, which differs from --model in its name.",
        ),
    ] = None,
    buckets: Annotated[
        int | None,
        typer.Option(
            "--buckets",
            min=1,
            help="As many buckets: a multiple of the snapshot's, a power of two. Default: as many "
            "as the store's model has, or the snapshot.",
        ),
    ] = None,
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="Do not read all of it first, nor compare digests.")
    ] = False,
    empty: Annotated[
        bool,
        typer.Option(
            "--empty",
            help="Fill the missing buckets with nothing, from no snapshot: Kafka supplies "
            "everything, if it still holds all examples.",
        ),
    ] = False,
) -> None:
    """Fill the buckets that the store lacks; learners then supply the rest from Kafka.

    After an interruption run it again: it goes on where it was.
    """
    from deploy.restore import RestoreSettings
    from learner.spec import load_spec

    spec = load_spec(model)
    settings = RestoreSettings(name, copy, buckets, trusting=no_verify)
    if empty:
        if name is not None or copy is not None:
            raise BadOption("--empty: expected neither --snapshot nor --as beside it")
        _restore_empty(spec, redis, buckets)
    elif place is None:
        raise BadOption("expected DIR / HEADRACE_SNAPSHOTS, or --empty, found neither")
    else:
        _restore_from(place, spec, redis, settings)


def _restore_empty(spec: "ModelSpec", redis: str, buckets: int | None) -> None:
    from deploy.commands.building import open_store
    from deploy.restore import restore_empty

    store = open_store(redis, spec.name)
    try:
        filled = restore_empty(store, spec, buckets)
    finally:
        store.close()
    if not filled:
        typer.echo(f"{spec.name}: no bucket is missing, nothing was done")
        return
    shown = ", ".join(map(str, filled))
    typer.echo(
        f"{spec.name}: {len(filled)} buckets are empty now: {shown}. Learners read all examples "
        "again for them; if Kafka no longer holds them from offset 0 on, they stop, naming the gap"
    )


def _restore_from(place: str, spec: "ModelSpec", redis: str, settings: "RestoreSettings") -> None:
    from rich.console import Console

    from deploy.commands.building import redis_url
    from deploy.restore import choose, restore_model
    from deploy.signals import stopped_by_signals
    from deploy.snapshot_view import Shown
    from pserver.redis_store import StoreSettings, open_store
    from pserver.snapshots.shelf import Shelf

    shelf = Shelf(place)
    wanted = choose(shelf, spec, settings)
    manifest, to = wanted
    # a model whose shape was lost with its shard gets the layout that its other buckets still have
    store = open_store(redis_url(redis), to.name, StoreSettings(sub_hashes=manifest.sub_hashes))
    try:
        with stopped_by_signals() as stop, Shown(Console(stderr=True)) as shown:
            restored = restore_model(
                store,
                shelf,
                wanted,
                settings,
                stop=stop,
                tell_verified=shown.buckets(f"verifying {manifest.name}"),
                tell_restored=shown.buckets(f"restoring {to.name}"),
            )
    finally:
        store.close()
    if restored is None or not restored.complete:
        typer.echo(f"{to.name}: stopped before all was restored; run it again", err=True)
        raise typer.Exit(EXIT_STOPPED)
    if not restored.buckets:
        typer.echo(f"{to.name}: no bucket is missing, nothing was done")
        return
    typer.echo(
        f"{to.name}: {len(restored.buckets)} buckets with {restored.rows:,} rows restored from "
        f"{manifest.name}; learners go on from its marks"
    )


def rebuild(
    place: Place,
    model: ModelFile,
    as_of: Annotated[
        str,
        typer.Option(
            "--as-of",
            metavar="TIME",
            help="Learn what was appended to the topic of examples before: ISO 8601 (UTC where it "
            "names no offset), or milliseconds since 1970.",
        ),
    ],
    kafka: KafkaAddress = KAFKA,
    kafka_client: KafkaClient = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="NAME",
            help="Begin with this snapshot, or with `beginning`: with no rows. Default: the newest "
            "snapshot from before TIME, or the beginning.",
        ),
    ] = None,
    examples_of: ExamplesOf = "",
    buckets: Buckets = 64,
) -> None:
    """Learn examples again onto a snapshot: the model as it was, as a snapshot in DIR.

    Reads Kafka and DIR, and no store. --buckets is for a model that begins with no rows.
    """
    from contextlib import closing

    from rich.console import Console

    from deploy.commands.building import kafka_settings
    from deploy.rebuild import Rebuilding, RebuildSettings
    from deploy.rebuild import rebuild as rebuild_model
    from deploy.signals import stopped_by_signals
    from deploy.snapshot_view import Shown
    from learner.spec import load_spec
    from pserver.snapshots.shelf import Shelf

    spec, shelf = load_spec(model), Shelf(place)
    settings = RebuildSettings(moment_ms(as_of), start, examples_of, buckets)
    rebuilding = Rebuilding(settings, kafka_settings(kafka, kafka_client), spec, shelf)
    begin = rebuilding.manifest.name if rebuilding.manifest else "no rows"
    typer.echo(f"{spec.name}: beginning with {begin}", err=True)
    with (
        closing(rebuilding.reader),
        stopped_by_signals() as stop,
        Shown(Console(stderr=True)) as shown,
    ):
        written = rebuild_model(
            rebuilding,
            version_here(),
            stop=stop,
            tell_restored=shown.buckets("reading the snapshot"),
            tell_replayed=shown.replay("learning again"),
            tell_written=shown.buckets("writing"),
        )
    say_written(written, place)


def moment_ms(text: str) -> int:
    """Return a time in milliseconds since 1970. Raises BadOption."""
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadOption(
            "--as-of: expected a time such as 2026-11-20T18:30:00Z, or milliseconds since 1970, "
            f"found {text!r}"
        ) from error
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)
