"""The data files of a fit: at any URL of fsspec, and the refusal of data that does not fit."""

import json
import socket
import tempfile
import threading
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from fsspec.registry import known_implementations

from headrace.ingest.features.spec_text import SpecError
from headrace.ingest.logs.layout import parse_layout
from headrace.learner.batch.fit_folder import FitFolder
from headrace.learner.batch.sources import UnreadableData
from headrace.learner.batch.store_fit.staged_run import StageFolder
from headrace.learner.batch.table_source import TableSource
from headrace.learner.batch.trainer import BatchTrainer, FitSettings
from headrace.learner.local.in_memory_model import InMemoryModel
from headrace.pserver.snapshots.snapshot_errors import StorageFailed
from tests.learner.batch.staged_files import counters
from tests.learner.shop import shop_rows, shop_spec

LAYOUT = '[event]\ntimestamp = "timestamp_ms"\n[click]\ncolumn = "clicked"\n'
ROWS = 2_000
SPEC = shop_spec()


@pytest.fixture
def rows() -> pa.Table:
    return shop_rows(ROWS).drop_columns(["tags"])


@pytest.fixture
def folder(fresh_name: object) -> str:
    """A folder of a file system in memory, which stands for any other storage."""
    assert callable(fresh_name)
    return f"memory://{fresh_name('logs')}"


def text_of(rows: pa.Table, kind: str) -> bytes:
    if kind == "ndjson":
        return "".join(json.dumps(row) + "\n" for row in rows.to_pylist()).encode()
    sink = pa.BufferOutputStream()
    write = pyarrow.csv.write_csv if kind == "csv" else pyarrow.parquet.write_table
    write(rows, sink)
    return bytes(sink.getvalue())


def put(url: str, content: bytes) -> None:
    with fsspec.open(url, "wb") as file:
        file.write(content)


def fit(url: str, to: Path | str, settings: FitSettings | None = None) -> InMemoryModel:
    source = TableSource([url], parse_layout(LAYOUT, "layout.toml"), SPEC)
    trainer = BatchTrainer(SPEC, source, FitFolder(str(to), SPEC.name), settings or FitSettings())
    done = trainer.run(threading.Event(), lambda _: None)
    assert done is not None
    return InMemoryModel.load(to, done.snapshot)


@pytest.mark.parametrize("kind", ["csv", "ndjson", "parquet"])
def test_files_of_one_name_in_two_folders_of_a_url_are_learned_as_local_files_are(
    kind: str, rows: pa.Table, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = tmp_path / "copies"
    copies.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(copies))
    for month in range(2):
        content = text_of(rows.slice(month * ROWS // 2, ROWS // 2), kind)
        put(f"{folder}/{month}/log.{kind}", content)
        put(f"{tmp_path}/{month}.{kind}", content)
    local = fit(f"{tmp_path}/*.{kind}", tmp_path / "models")
    far = fit(f"{folder}/*/log.{kind}", f"{folder}/models", FitSettings(holdout=0.25))
    assert counters(far.rows) == counters(local.rows)
    assert not list(copies.iterdir())


def test_an_error_in_a_file_of_a_url_names_the_url(folder: str, tmp_path: Path) -> None:
    put(f"{folder}/log.parquet", b"no table")
    with pytest.raises(
        SpecError, match=r"^memory://.*/log\.parquet: expected a parquet file, got: "
    ):
        fit(f"{folder}/log.parquet", tmp_path)


def test_a_url_that_cannot_be_read_is_refused_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = {"class": "nowhere.Files", "err": "Install nowhere to access Nowhere"}
    monkeypatch.setitem(known_implementations, "nowhere", lacking)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for url, expected in (
        (
            "nowhere://log.csv",
            r"expected an installed package for nowhere://log.csv, got: Install ",
        ),
        (
            "unheard://log.csv",
            r"expected readable files at unheard://.*Protocol not known: unheard",
        ),
        (f"http://127.0.0.1:{port}/log.csv", r"got none: Cannot connect to host.*Correct the path"),
        (str(tmp_path), r"got a folder\. Name its files, as in .*\*\.parquet"),
        (f"{tmp_path}/log.csv", r"--data: expected files at .*log\.csv, got none"),
    ):
        with pytest.raises(UnreadableData, match=expected):
            fit(url, tmp_path / "models")


@pytest.mark.parametrize("kind", [FitFolder, StageFolder])
def test_a_folder_of_an_unknown_storage_is_refused(kind: type) -> None:
    with pytest.raises(StorageFailed, match="opening unheard://models: Protocol not known"):
        kind("unheard://models", "shop")


@pytest.mark.parametrize("kind", ["csv", "ndjson", "parquet"])
def test_a_file_of_one_block_holds_out_its_last_rows(
    kind: str, rows: pa.Table, tmp_path: Path
) -> None:
    path = tmp_path / f"log.{kind}"
    path.write_bytes(text_of(rows, kind))
    source = TableSource([str(path)], parse_layout(LAYOUT, "layout.toml"), SPEC)
    folder = StageFolder(str(tmp_path), SPEC.name)
    run = folder.stage(SPEC, source, ROWS, threading.Event(), lambda _: None, holdout=0.25)
    assert run is not None
    assert (run.rows, run.epoch_rows) == ([ROWS * 3 // 4, ROWS // 4], [ROWS * 3 // 4])


@pytest.mark.parametrize("kind", ["csv", "ndjson", "parquet"])
def test_data_without_rows_is_refused_and_writes_no_model(
    kind: str, rows: pa.Table, tmp_path: Path
) -> None:
    (tmp_path / f"log.{kind}").write_bytes(text_of(rows.slice(0, 0), kind))
    with pytest.raises(UnreadableData, match="expected data with at least one row, got none"):
        fit(f"{tmp_path}/log.{kind}", tmp_path / "models")
    assert not list((tmp_path / "models").glob("*-shop-*"))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({"user": "usr"}, r"log\.csv: expected columns .* got 'usr' in place of 'user'\. Correct"),
        ({"user": "a", "item": "b"}, r"among them item, .*user.*, got a, b\. Correct the source"),
    ],
)
def test_columns_of_another_name_than_the_fields_are_refused(
    names: dict[str, str], expected: str, rows: pa.Table, tmp_path: Path
) -> None:
    other = rows.select(["user", "item", "timestamp_ms", "clicked"]).rename_columns(
        [names.get(name, name) for name in ("user", "item", "timestamp_ms", "clicked")]
    )
    (tmp_path / "log.csv").write_bytes(text_of(other, "csv"))
    with pytest.raises(UnreadableData, match=expected):
        fit(f"{tmp_path}/log.csv", tmp_path / "models")


def test_a_column_that_a_file_lacks_is_named_in_the_log(
    rows: pa.Table, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "log.csv").write_bytes(text_of(rows.drop_columns(["user"]), "csv"))
    assert len(fit(f"{tmp_path}/log.csv", tmp_path / "models"))
    assert "expected a column for each field of the spec, got none for" in caplog.text
    assert "user" in caplog.text
