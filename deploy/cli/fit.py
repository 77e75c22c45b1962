"""`headrace fit` learns a model from files, `headrace export` writes one for a device."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.counted_nouns import counted
from headrace.deploy.cli.options import (
    ModelFile,
    RunsFolder,
    TableLayout,
    TrackUri,
    layout_of_tables,
    urls_of_data,
)
from headrace.deploy.cli.runs import run_outputs
from headrace.deploy.errors import BadOption

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.learner.batch import (
        BatchSource,
        BatchTrainer,
        FitSettings,
        FitSummary,
        StoreFitSettings,
        StoreTrainer,
    )
    from headrace.learner.spec import ModelSpec
    from headrace.pserver import Store

EXIT_STOPPED = 1
"""Exit status of a fit that was stopped before it was done."""


To = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="DIR",
        help="Folder of snapshots for the model, or URL such as s3://BUCKET/PATH.",
    ),
]
Data = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        metavar="FILES",
        help="Tables (Parquet, CSV, NDJSON): a path or URL, with * for several. Repeatable. "
        "Learned in the order of the options, and files of one pattern in the order of their "
        "names.",
        show_default=False,
    ),
]
ArchiveFolder = Annotated[
    str | None,
    typer.Option(
        "--archive",
        metavar="DIR",
        help="Instead of --data: the folder that `headrace ingest sink --model` writes. "
        "Learners then continue after its last example.",
        show_default=False,
    ),
]
Epochs = Annotated[
    int, typer.Option("--epochs", min=1, help="Largest number of passes over the data.")
]
Holdout = Annotated[
    float,
    typer.Option(
        "--holdout",
        min=0.0,
        max=0.5,
        metavar="SHARE",
        help="Share of the data, at its end, whose log loss decides after which epoch to stop. "
        "It is learned once, after the last epoch.",
    ),
]
SaveEvery = Annotated[
    float,
    typer.Option(
        "--save-every", min=0.0, metavar="SECONDS", help="Time between two saves of the progress."
    ),
]
StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="Redis or Valkey through which several processes learn together: redis://HOST:PORT or "
        "redis+cluster://. Put user and password in HEADRACE_REDIS_USER and "
        "HEADRACE_REDIS_PASSWORD. The fit drops its temporary model at the end.",
        show_default=False,
    ),
]
Workers = Annotated[
    int,
    typer.Option("--workers", min=0, help="With --store: number of processes. 0: one per core."),
]
Part = Annotated[
    str,
    typer.Option(
        "--part",
        metavar="K/N",
        help="With --store: number K of this machine among N machines that run the same command. "
        "Machine 1 stages the examples and writes the snapshot.",
    ),
]
Restart = Annotated[
    bool, typer.Option("--restart", help="Discard an unfinished fit and begin again.")
]

Origin = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="DIR",
        help="Folder of snapshots, or URL such as s3://BUCKET/PATH.",
        show_default=False,
    ),
]
Exported = Annotated[
    str,
    typer.Option("--to", metavar="FILE", help="ONNX file to write, or URL.", show_default=False),
]
SnapshotName = Annotated[
    str | None,
    typer.Option(
        "--snapshot",
        metavar="NAME",
        help="Name of the snapshot. Default: the newest.",
        show_default=False,
    ),
]


def fit(
    model: ModelFile,
    to: To,
    data: Data = None,
    layout: TableLayout = "",
    archive: ArchiveFolder = None,
    epochs: Epochs = 1,
    holdout: Holdout = 0.0,
    save_every: SaveEvery = 60.0,
    store: StoreUrl = None,
    workers: Workers = 0,
    part: Part = "1/1",
    restart: Restart = False,
    runs: RunsFolder = "",
    track: TrackUri = "",
) -> None:
    """Learn tables or archived examples, and write the model as a snapshot.

    If interrupted, run it again: it continues after the last saved state. `headrace serving run
    --snapshot` serves the result, `headrace pserver restore` loads it into a parameter server.
    The exit status is 2 if more than half of the rows are refused, as `headrace check` reports.
    """
    from rich.console import Console

    from headrace.deploy.reports import fit_in_words
    from headrace.deploy.reports.tracking import RunKind, RunState, record_run
    from headrace.deploy.terminal import StepView
    from headrace.deploy.termination import stopped_by_signals
    from headrace.learner.batch import FitSettings
    from headrace.learner.spec import load_spec

    spec = load_spec(model)
    _check(spec, epochs, holdout, archive)
    source = _source(spec, data, layout, archive)
    settings = FitSettings(epochs, holdout, save_every)
    if store is not None:
        _check_store(spec, archive)
    into = None if store is None else (store, _store_settings(epochs, workers, part, holdout))
    trainer = _trainer(spec, source, to, settings, into, restart=restart)
    if trainer.resumed:
        typer.echo("continuing an unfinished fit", err=True)
    options = {"epochs": epochs, "holdout": holdout, "to": to}
    paths = data or [str(archive)]
    with (
        stopped_by_signals() as stop,
        run_outputs(runs, track) as outputs,
        record_run(outputs, RunKind.FIT, spec.name, model, data=paths, settings=options) as kept,
        StepView(Console(stderr=True)) as shown,
    ):
        begun_s = time.monotonic()
        done = trainer.run(stop, shown.fit(f"fitting {spec.name}", epochs))
        if done is None:
            kept.change(state=RunState.STOPPED)
        else:
            kept.figures(_figures(done))
    if done is not None:
        seconds = time.monotonic() - begun_s
        typer.echo(
            fit_in_words(done, spec.name, to, trainer.refusals, seconds, resumed=trainer.resumed)
        )
    elif stop.is_set() or part.startswith("1/"):
        typer.echo("stopped: run the same command again to continue", err=True)
        raise typer.Exit(EXIT_STOPPED)
    else:
        typer.echo(f"part {part} is learned; part 1 writes the snapshot", err=True)


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
    from headrace.learner.batch import (
        BatchTrainer,
        FitFolder,
        StageFolder,
        StoreTrainer,
        run_name,
    )

    folder, stage = FitFolder(to, spec.name), StageFolder(to, spec.name)
    if restart:
        folder.restart()
        if into is not None and stage.token:
            dropped = _opener(into[0])(run_name(spec.name, stage.token))
            dropped.drop()
            dropped.close()
        stage.remove()
    if into is None:
        return BatchTrainer(spec, source, folder, settings)
    url, in_store = into
    return StoreTrainer(spec, source, (folder, stage), _opener(url), in_store)


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
    from headrace.ingest.runtime import available_cores
    from headrace.learner.batch import StoreFitSettings

    number, _, parts = part.partition("/")
    if not (number.isdigit() and parts.isdigit() and 1 <= int(number) <= int(parts)):
        raise BadOption(f"--part: expected K/N, such as 1/3, got {part!r}")
    processes = workers or available_cores()
    return StoreFitSettings(epochs, processes, int(number), int(parts), holdout=holdout)


def _opener(url: str) -> "Callable[[str], Store]":
    """Return a function that opens the store of a model, in any process."""
    import functools

    from headrace.deploy.connections import environment_names, redis_url
    from headrace.pserver.redis_backend import StoreSettings, open_store

    settings = StoreSettings(key_prefix=environment_names().prefix)
    return functools.partial(open_store, redis_url(url), settings=settings)


def _source(
    spec: "ModelSpec", data: list[str] | None, layout: str, archive: str | None
) -> "BatchSource":
    from headrace.learner.batch import ArchiveSource, TableSource

    urls = urls_of_data(data, archive)
    if archive is not None:
        return ArchiveSource(archive, spec)
    return TableSource(urls, layout_of_tables(layout, urls), spec)


def export(model: ModelFile, origin: Origin, to: Exported, snapshot: SnapshotName = None) -> None:
    """Write a snapshot as one ONNX file: its rows, and the graph of its forward pass.

    A device scores candidates with this file and an ONNX runtime, without headrace.
    """
    from headrace.learner.local import InMemoryModel, export_onnx
    from headrace.learner.spec import load_spec
    from headrace.pserver.snapshots import SnapshotStorage, find_snapshot

    spec = load_spec(model)
    name = find_snapshot(SnapshotStorage(origin), spec.name, snapshot).name
    done = export_onnx(InMemoryModel.load(origin, name, spec=spec), to, name)
    megabytes = done.size_bytes / 1e6
    typer.echo(
        f"{to}: {counted(done.rows, 'row')} of {name}, {megabytes:.1f} MB, opset {done.opset}"
    )
