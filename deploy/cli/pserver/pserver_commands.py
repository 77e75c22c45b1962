"""`headrace pserver`: creates, inspects, restores and removes models in the parameter server."""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from headrace.deploy.connections import kafka_settings, open_store
from headrace.deploy.errors import BadOption
from headrace.deploy.options import (
    BUCKETS,
    KAFKA_CLIENT,
    METRICS_HOST,
    METRICS_PORT,
    MODEL,
    REDIS,
    STATUS_KAFKA,
    TOPICS_PREFIX,
    SpecFile,
)
from headrace.deploy.terminal.waiting_note import waiting_for
from headrace.runtime.counted_nouns import counted
from headrace.runtime.settings import setting
from headrace.runtime.termination import stopped_by_signals

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from headrace.deploy.operations.examples_topic import ExamplesBounds
    from headrace.deploy.operations.model_checks import NewestSnapshot
    from headrace.ingest.features.fields import FieldSet
    from headrace.pserver.redis_backend.redis_store import RedisStore

EXIT_GAPS = 1
"""Exit status of `inspect` if a bucket is missing or its server does not answer."""


HELD_BY = setting(
    None,
    "Kafka bootstrap servers. If set, the marks are compared with the topic of examples.",
    env="HEADRACE_KAFKA",
    metavar="HOST:PORT",
)
SNAPSHOTS_FOLDER = setting(
    None,
    "Folder or URL of snapshots, to report the age of the newest.",
    env="HEADRACE_SNAPSHOTS",
    metavar="DIR",
)
AS_JSON = setting(False, "Print JSON.", flag="--json")


def init(model: SpecFile = MODEL, redis: str = REDIS, buckets: int = BUCKETS) -> None:
    """Create a model, or check that the existing one has the same spec.

    A custom torch module is tested first, if torch is installed.
    """
    from headrace.learner.errors import MissingTorch
    from headrace.learner.models.factory import open_model
    from headrace.learner.spec.architecture import MODULE
    from headrace.pserver.store import Shape

    spec = model.spec
    if buckets & (buckets - 1) or buckets > 1 << 16:
        raise BadOption(
            f"--buckets / HEADRACE_BUCKETS: expected a power of two up to 65536, got {buckets}"
        )
    if spec.architecture == MODULE:
        with suppress(MissingTorch):  # only learners and servers need torch
            open_model(spec, buckets)
    with closing(open_store(redis, spec.name)) as store:
        store.create(Shape(spec.name, buckets, spec.width, spec.fingerprint, spec.text))
    click.echo(
        f"{spec.name}: {counted(buckets, 'bucket')}, {spec.width} floats a row, {spec.fingerprint}"
    )


def limit(
    model: SpecFile = MODEL,
    redis: str = REDIS,
    rows: int | None = setting(
        None,
        "Most rows of the model; 0 removes the limit. Default: only show the limit.",
        least=0,
        most=10**12,
    ),
) -> None:
    """Set the most rows that a model may have, so that it leaves memory for other models.

    Keepers delete the least recently seen rows beyond the limit, as with `most_rows` in the section
    [expiry] of the spec; the lower limit applies. Running keepers follow within ten seconds. The
    limit belongs to the name of the model: you may set it before the model exists, and it outlives
    `drop`.
    """
    name = model.spec.name
    with closing(open_store(redis, name)) as store:
        if rows is not None:
            store.limit_rows(rows)
        found = store.row_limit()
    click.echo(f"{name}: at most {counted(found, 'row')}" if found else f"{name}: no limit on rows")


def keep(
    model: SpecFile = MODEL,
    redis: str = REDIS,
    name: str = setting(
        "", "Name of the lease holder. Default: host and process id.", env="HEADRACE_KEEPER"
    ),
    metrics_port: int = METRICS_PORT,
    metrics_host: str = METRICS_HOST,
    kafka: str | None = STATUS_KAFKA,
    kafka_client: list[str] | None = KAFKA_CLIENT,
    snapshots: str | None = SNAPSHOTS_FOLDER,
) -> None:
    """Fold logs into rows, trim logs and delete expired rows, until stopped. Any number may run."""
    from headrace.ingest.status import status_in
    from headrace.learner.spec.compatibility import check_compatible
    from headrace.pserver.keeper.bucket_lease import FoldPolicy
    from headrace.pserver.keeper.process import KeeperSettings, run_keeper
    from headrace.runtime.process import instance_name

    spec = model.spec
    settings = KeeperSettings(
        name=name or instance_name(),
        keeping=FoldPolicy(expiry=spec.expiry),
        metrics_address=(metrics_host, metrics_port),
    )
    with closing(open_store(redis, spec.name)) as store:
        check_compatible(spec, store.shape())
        status = status_in(kafka_settings(kafka, kafka_client) if kafka else None)
        collectors = _store_collectors(store, spec.name, snapshots)
        with stopped_by_signals() as stop:
            run_keeper(settings, store, stop, status, collectors)


def _store_collectors(store: "RedisStore", model: str, snapshots: str | None) -> "list[Collector]":
    """Return the metrics of the servers, and of the newest snapshot if its folder is named."""
    from headrace.pserver.inspection.nodes import node_memory
    from headrace.pserver.keeper.store_collectors import (
        NewestSnapshotCollector,
        StoreMemoryCollector,
    )
    from headrace.pserver.snapshots.catalog import newest_begun_ms
    from headrace.pserver.snapshots.storage import SnapshotStorage

    collectors: list[Collector] = [StoreMemoryCollector(model, lambda: node_memory(store.nodes))]
    if snapshots:
        storage = SnapshotStorage(snapshots)
        collectors.append(NewestSnapshotCollector(model, lambda: newest_begun_ms(storage, model)))
    return collectors


def inspect(
    model: SpecFile = MODEL,
    redis: str = REDIS,
    kafka: str | None = HELD_BY,
    kafka_client: list[str] | None = KAFKA_CLIENT,
    as_json: bool = AS_JSON,
) -> None:
    """Show the server, rows and progress of each bucket.

    Copies no rows. Bytes of rows are estimated from sixteen sub-hashes of each bucket. Rows that
    are only in the logs are counted while all logs together have less than 64 MB. Lag is in offsets
    of the topic of examples. Exits with 1 if a bucket is missing or its server does not answer.
    """
    from headrace.deploy.operations.inspection import is_complete, survey_json, survey_text
    from headrace.deploy.terminal.tables import print_shown
    from headrace.pserver.inspection.buckets import count_in_logs
    from headrace.pserver.inspection.model_survey import survey

    name = model.spec.name
    # before the marks: what is learned during a long survey must not count as lag
    topic = _topic_bounds(name, kafka, kafka_client)
    with closing(open_store(redis, name, read_only=True)) as store:
        with waiting_for("the servers of the store"):
            found = survey(store, name)
        if found.shape is not None:
            with waiting_for("the logs in the store"):
                found = replace(found, buckets=count_in_logs(store, found.buckets))
    if found.shape is None and not found.buckets:
        assert found.trouble is not None
        raise found.trouble
    if as_json:
        click.echo(json.dumps(survey_json(found, topic), indent=2))
    else:
        print_shown(survey_text(found, topic))
    if not is_complete(found):
        raise click.exceptions.Exit(EXIT_GAPS)


def doctor(
    model: SpecFile = MODEL,
    redis: str = REDIS,
    kafka: str | None = HELD_BY,
    kafka_client: list[str] | None = KAFKA_CLIENT,
    snapshots: str | None = SNAPSHOTS_FOLDER,
    as_json: bool = AS_JSON,
) -> None:
    """Check the servers and the model, and print a remedy for each problem.

    Changes nothing. Exits with 0 if there are only notes, with 1 if there are warnings and with 2
    if something is broken.
    """
    from headrace.deploy.operations.doctor import diagnose, diagnosis_json, diagnosis_text
    from headrace.deploy.terminal.tables import print_shown
    from headrace.pserver.inspection.model_survey import survey

    spec = model.spec
    with (
        closing(open_store(redis, spec.name, read_only=True)) as store,
        waiting_for("the servers of the store"),
    ):
        found = survey(store, spec.name)
    marks = [each.marks for each in found.buckets if each.there]
    topic = _topic_bounds(spec.name, kafka, kafka_client, marks, spec.fields)
    diagnosis = diagnose(found, spec, topic, _newest_snapshot(spec.name, snapshots))
    if as_json:
        click.echo(json.dumps(diagnosis_json(diagnosis), indent=2))
    else:
        print_shown(diagnosis_text(diagnosis))
    raise click.exceptions.Exit(diagnosis.exit_code)


def drop(
    model: SpecFile = MODEL,
    redis: str = REDIS,
    yes: bool = setting(False, "Do not ask for confirmation."),
    force: bool = setting(False, "Remove the model even if it seems to be in use."),
) -> None:
    """Remove a model with all its rows. If interrupted, run it again."""
    from headrace.deploy.operations.removal import drop_model

    name = model.spec.name

    def confirm(what: str) -> bool:
        if yes:
            return True
        click.echo(f"This removes {what}.")
        click.echo(f"Type the model's name ({name}) to remove it: ", nl=False)
        return sys.stdin.readline().strip() == name

    with closing(open_store(redis, name)) as store:
        click.echo(drop_model(store, name, confirm, force=force))


def acl(
    model: SpecFile = MODEL,
    role: str | None = setting(None, "Role: server, learner, keeper or operator. Default: all."),
    topics_prefix: str = TOPICS_PREFIX,
) -> None:
    """Print the ACL commands for users with only the rights that headrace needs.

    Run them on every server, including replicas, and store them with ACL SAVE.
    """
    from headrace.ingest.kafka.settings import TopicNames
    from headrace.pserver.redis_backend.acl import ROLES, rule

    prefix = TopicNames(topics_prefix).prefix
    name = model.spec.name
    chosen = [each for each in ROLES if role in (None, each.name)]
    if not chosen:
        expected = ", ".join(each.name for each in ROLES)
        raise BadOption(f"--role: expected one of {expected}, got {role}")
    for each in chosen:
        click.echo(f"# {each.for_whom}")
        click.echo(rule(each, name, f"{prefix}{name}-{each.name}", prefix=prefix))


def _newest_snapshot(model: str, place: str | None) -> "NewestSnapshot | None":
    if not place:
        return None
    from headrace.deploy.operations.model_checks import NewestSnapshot
    from headrace.pserver.snapshots.catalog import newest_begun_ms
    from headrace.pserver.snapshots.storage import SnapshotStorage

    with waiting_for(f"the snapshots at {place}"):
        return NewestSnapshot(place, newest_begun_ms(SnapshotStorage(place), model))


def _topic_bounds(
    model: str,
    kafka: str | None,
    kafka_client: list[str] | None,
    marks: "Sequence[Mapping[str, int]]" = (),
    fields: "FieldSet | None" = None,
) -> "ExamplesBounds | None":
    if kafka is None:
        return None
    from headrace.deploy.operations.examples_topic import topic_bounds

    with waiting_for(f"Kafka at {kafka}"):
        return topic_bounds(kafka_settings(kafka, kafka_client), model, marks, fields)
