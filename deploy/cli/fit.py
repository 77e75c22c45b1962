"""`headrace fit` learns a model from files, `headrace export` writes one for a device."""

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import click

from headrace.deploy.cli.runs import run_outputs
from headrace.deploy.connections import open_store
from headrace.deploy.errors import BadOption
from headrace.deploy.options import (
    MODEL,
    RUNS_FOLDER,
    TABLE_LAYOUT,
    TRACK_URI,
    SpecFile,
    layout_of_tables,
    urls_of_data,
)
from headrace.runtime.counted_nouns import counted
from headrace.runtime.settings import setting
from headrace.runtime.termination import REFUSED, stopped_by_signals

if TYPE_CHECKING:
    from headrace.learner.batch.sources import BatchSource
    from headrace.learner.batch.store_fit.store_trainer import StoreFitSettings, StoreTrainer
    from headrace.learner.batch.trainer import BatchTrainer, FitSettings, FitSummary
    from headrace.learner.spec.model_spec import ModelSpec

EXIT_STOPPED = 1
"""Exit status of a fit that was stopped before it was done."""
_REFUSED_ROWS = (
    "refused: expected a model of every row, got one without the rows above. Correct the data or "
    "its layout and fit again, or add --accept-refused"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitOptions:
    """Options of `headrace fit`."""

    to: str = setting(metavar="DIR")
    """Folder of snapshots for the model, or URL such as s3://BUCKET/PATH."""
    data: list[str] | None = setting(None, metavar="FILES")
    """Tables (Parquet, CSV, NDJSON): a path or URL, with * for several. Repeatable. Learned in the
    order of the options, and files of one pattern in the order of their names."""
    archive: str | None = setting(None, metavar="DIR")
    """Instead of --data: the folder that `headrace ingest sink --model` writes. Learners then
    continue after its last example."""
    epochs: int = setting(1, least=1)
    """Largest number of passes over the data."""
    holdout: float = setting(0.0, metavar="SHARE", least=0.0, most=0.5)
    """Share of the data, at its end, whose log loss decides after which epoch to stop. It is
    learned once, after the last epoch."""
    save_every: float = setting(60.0, metavar="SECONDS", least=0.0)
    """Time between two saves of the progress."""
    store: str | None = setting(None, metavar="URL")
    """Redis or Valkey through which several processes learn together: redis://HOST:PORT or
    redis+cluster://. Put user and password in HEADRACE_REDIS_USER and HEADRACE_REDIS_PASSWORD. The
    fit drops its temporary model at the end."""
    workers: int = setting(0, least=0)
    """With --store: number of processes. 0: one per core."""
    part: str = setting("1/1", metavar="K/N")
    """With --store: number K of this machine among N machines that run the same command. Machine 1
    stages the examples and writes the snapshot."""
    restart: bool = setting(False)
    """Discard an unfinished fit and begin again."""
    accept_refused: bool = setting(False)
    """End with status 0 although rows were refused, at most half."""


def fit(
    options: FitOptions,
    model: SpecFile = MODEL,
    layout: str = TABLE_LAYOUT,
    runs: str = RUNS_FOLDER,
    track: str = TRACK_URI,
) -> None:
    """Learn tables or archived examples, and write the model as a snapshot.

    If interrupted, run it again: it continues after the last saved state. `headrace serving run
    --snapshot` serves the result, `headrace pserver restore` loads it into a parameter server.
    The exit status is 2 if a row is refused, as `headrace check` reports. The model has the other
    rows. If more than half are refused, no model is written.
    """
    from headrace.deploy.reports.fit_report import fit_in_words
    from headrace.deploy.reports.tracking.run_recorder import record_run
    from headrace.deploy.reports.tracking.tracked_run import RunKind, RunState
    from headrace.deploy.terminal.progress_bars import StepView
    from headrace.learner.batch.trainer import FitSettings

    spec = model.spec
    _check(spec, options.epochs, options.holdout, options.archive)
    source = _source(spec, options.data, layout, options.archive)
    settings = FitSettings(options.epochs, options.holdout, options.save_every)
    into = None
    if options.store is not None:
        _check_store(spec, options.archive)
        shared = _store_settings(options.epochs, options.workers, options.part, options.holdout)
        into = options.store, shared
    trainer = _trainer(spec, source, options.to, settings, into, restart=options.restart)
    if trainer.resumed:
        click.echo("continuing an unfinished fit", err=True)
    facts = {"epochs": options.epochs, "holdout": options.holdout, "to": options.to}
    paths = options.data or [str(options.archive)]
    with (
        stopped_by_signals() as stop,
        record_run(
            run_outputs(runs, track), RunKind.FIT, spec.name, model.path, data=paths, settings=facts
        ) as kept,
        StepView() as shown,
    ):
        begun_s = time.monotonic()
        done = trainer.run(stop, shown.fit(f"fitting {spec.name}", options.epochs))
        if done is None:
            kept.change(state=RunState.STOPPED)
        else:
            kept.figures(_figures(done))
    if done is not None:
        seconds = time.monotonic() - begun_s
        click.echo(
            fit_in_words(
                done, spec.name, options.to, trainer.refusals, seconds, resumed=trainer.resumed
            )
        )
        if trainer.refusals and not options.accept_refused:
            click.echo(_REFUSED_ROWS, err=True)
            raise click.exceptions.Exit(REFUSED)
    elif stop.is_set() or options.part.startswith("1/"):
        click.echo("stopped: run the same command again to continue", err=True)
        raise click.exceptions.Exit(EXIT_STOPPED)
    else:
        click.echo(f"part {options.part} is learned; part 1 writes the snapshot", err=True)


def _figures(done: "FitSummary") -> dict[str, float | None]:
    return {
        "examples": done.examples,
        "rows": done.rows,
        "normalized_entropy": done.normalized_entropy,
        "log_loss": done.held_out_loss,
    }


def _trainer(
    spec: "ModelSpec",
    source: "BatchSource",
    to: str,
    settings: "FitSettings",
    into: "tuple[str, StoreFitSettings] | None",
    *,
    restart: bool,
) -> "BatchTrainer | StoreTrainer":
    """Return the trainer in memory, or `into` a store."""
    from headrace.learner.batch.fit_folder import FitFolder
    from headrace.learner.batch.store_fit.staged_run import StageFolder
    from headrace.learner.batch.store_fit.store_trainer import StoreTrainer, run_name
    from headrace.learner.batch.trainer import BatchTrainer

    folder, stage = FitFolder(to, spec.name), StageFolder(to, spec.name)
    if restart:
        folder.restart()
        if into is not None and stage.token:
            dropped = open_store(into[0], run_name(spec.name, stage.token))
            dropped.drop()
            dropped.close()
        stage.remove()
    if into is None:
        return BatchTrainer(spec, source, folder, settings)
    url, in_store = into
    return StoreTrainer(spec, source, (folder, stage), partial(open_store, url), in_store)


def _check(spec: "ModelSpec", epochs: int, holdout: float, archive: str | None) -> None:
    if epochs > 1 and spec.statistics:
        raise BadOption(
            f"--epochs: expected 1, since the spec has [statistics.*] and rows would count each "
            f"example {epochs} times, got {epochs}"
        )
    if epochs > 1 and spec.histories:
        raise BadOption(
            f"--epochs: expected 1, since the spec has a history ({', '.join(spec.histories)}), "
            f"which holds the latest clicks after the first epoch, got {epochs}"
        )
    if holdout and archive is not None and spec.fields.label.policy == "immediate":
        raise BadOption(
            '--holdout: expected data with final labels, got an archive of policy "immediate", '
            "whose impressions are learned before their clicks"
        )


def _check_store(spec: "ModelSpec", archive: str | None) -> None:
    if spec.histories:
        raise BadOption(
            "--store: expected a spec without histories, since processes learn files at the same "
            f"time and a history needs the order of time, got {', '.join(spec.histories)}"
        )
    if spec.structure.synchronous:
        raise BadOption(
            "--store: expected a spec with synchronous = false, since processes learn "
            "independently, got true"
        )
    if archive is not None and spec.fields.label.policy == "immediate":
        raise BadOption(
            '--store: expected data with final labels, got an archive of policy "immediate", in '
            "which a click must be learned where its impression was"
        )


def _store_settings(epochs: int, workers: int, part: str, holdout: float) -> "StoreFitSettings":
    from headrace.learner.batch.store_fit.store_trainer import StoreFitSettings
    from headrace.runtime.affinity import available_cores

    number, _, parts = part.partition("/")
    if not (number.isdigit() and parts.isdigit() and 1 <= int(number) <= int(parts)):
        raise BadOption(f"--part: expected K/N, such as 1/3, got {part!r}")
    processes = workers or available_cores()
    return StoreFitSettings(epochs, processes, int(number), int(parts), holdout=holdout)


def _source(
    spec: "ModelSpec", data: list[str] | None, layout: str, archive: str | None
) -> "BatchSource":
    from headrace.learner.batch.archive_source import ArchiveSource
    from headrace.learner.batch.table_source import TableSource

    urls = urls_of_data(data, archive)
    if archive is not None:
        return ArchiveSource(archive, spec)
    return TableSource(urls, layout_of_tables(layout, urls), spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """Options of `headrace export`."""

    origin: str = setting(metavar="DIR", flag="--from")
    """Folder of snapshots, or URL such as s3://BUCKET/PATH."""
    to: str = setting(metavar="FILE")
    """ONNX file to write, or URL."""
    snapshot: str | None = setting(None, metavar="NAME")
    """Name of the snapshot. Default: the newest."""


def export(
    options: ExportOptions,
    model: SpecFile = MODEL,
) -> None:
    """Write a snapshot as one ONNX file: its rows, and the graph of its forward pass.

    A device scores candidates with this file and an ONNX runtime, without headrace.
    """
    from headrace.learner.local.in_memory_model import InMemoryModel
    from headrace.learner.local.onnx_export import export_onnx
    from headrace.pserver.snapshots.catalog import find_snapshot
    from headrace.pserver.snapshots.storage import SnapshotStorage

    spec = model.spec
    name = find_snapshot(SnapshotStorage(options.origin), spec.name, options.snapshot).name
    done = export_onnx(InMemoryModel.load(options.origin, name, spec=spec), options.to, name)
    megabytes = done.size_bytes / 1e6
    click.echo(
        f"{options.to}: {counted(done.rows, 'row')} of {name}, {megabytes:.1f} MB, "
        f"opset {done.opset}"
    )
