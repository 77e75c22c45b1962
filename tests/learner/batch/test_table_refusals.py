"""A fit of tables leaves out or refuses rows, files and layouts with the reason."""

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch

from headrace.ingest.events.contract import Reason
from headrace.ingest.logs.layout import parse_layout
from headrace.learner.batch.fit_folder import FitFolder
from headrace.learner.batch.prefetch import in_order, read_ahead
from headrace.learner.batch.sources import FilePosition, UnreadableData
from headrace.learner.batch.table_source import TableSource
from headrace.learner.batch.trainer import BatchTrainer, FitSettings
from headrace.learner.local.in_memory_model import InMemoryModel
from headrace.learner.spec.model_spec import parse_spec
from tests.learner.batch.fitted_tables import LAYOUT, ROWS, fit, layout, rows_of_files, write
from tests.learner.shop import shop_spec


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    return rows_of_files()


def test_data_that_is_mostly_refused_writes_no_model_and_begins_again_with_another_layout(
    rows: pa.Table, tmp_path: Path
) -> None:
    seconds = pa.compute.divide(rows["time"], 1000)
    pyarrow.parquet.write_table(rows.set_column(4, "time", seconds), tmp_path / "a.parquet")
    url, to, stop = str(tmp_path / "a.parquet"), tmp_path / "models", threading.Event()
    settings = FitSettings(save_every_s=0)
    with pytest.raises(UnreadableData, match="at most half is refused") as raised:
        fit(url, to, settings)
    assert f"{ROWS:,} rows are refused: {Reason.BEFORE_2000}" in str(raised.value)
    assert 'in a layout timestamp_format = "s"' in str(raised.value)
    assert not [path for path in to.rglob("*") if path.is_file()]
    right = parse_layout(LAYOUT.replace('"time"', '"time"\ntimestamp_format = "s"'), "layout.toml")
    source = TableSource([url], right, shop_spec())
    trainer = BatchTrainer(shop_spec(), source, FitFolder(str(to), "shop"), settings)
    done = trainer.run(stop, lambda _: None)
    assert done is not None
    assert done.examples == ROWS


def test_a_fit_of_other_data_does_not_go_on_with_an_unfinished_one(
    rows: pa.Table, tmp_path: Path
) -> None:
    url, stop = write(rows, tmp_path, "parquet"), threading.Event()
    stop.set()
    assert fit(url, tmp_path / "models", FitSettings(), stop) is None
    pyarrow.parquet.write_table(rows, tmp_path / "c.parquet")
    with pytest.raises(UnreadableData, match=r"the unfinished fit of this data.*--restart"):
        fit(url, tmp_path / "models", FitSettings())


def test_a_pattern_without_files_and_a_layout_without_clicks_are_refused(tmp_path: Path) -> None:
    spec = shop_spec()
    with pytest.raises(UnreadableData, match="--data: expected files at"):
        TableSource([str(tmp_path / "*.parquet")], layout(), spec)
    shown = parse_layout('[event]\ntimestamp = "time"\n', "layout.toml")
    with pytest.raises(UnreadableData, match=r"expected a \[click\] section"):
        TableSource([str(tmp_path)], shown, spec)


def test_an_error_of_the_reading_thread_reaches_its_consumer() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("broken file")

    with read_ahead(items()) as found, pytest.raises(ValueError, match="broken file"):
        list(found)


def test_a_consumer_that_leaves_ends_the_reading_thread() -> None:
    def items() -> Iterator[int]:
        number = 0
        while True:
            yield (number := number + 1)

    before = threading.active_count()
    with read_ahead(items(), ahead=2) as found:
        assert next(found) == 1
    assert threading.active_count() == before


def test_results_of_several_threads_come_in_the_order_of_the_items() -> None:
    dice = np.random.default_rng(3)
    sizes = dice.integers(1, 50_000, 200).tolist()
    found = in_order(lambda size: int(np.arange(size).sum()), sizes, threads=4)
    assert list(found) == [size * (size - 1) // 2 for size in sizes]


def test_an_error_of_a_thread_comes_at_its_item_and_ends_the_threads() -> None:
    before = threading.active_count()
    results = in_order(lambda number: 10 // number, iter([1, 2, 0, 5]), threads=2)
    assert next(results) == 10
    assert next(results) == 5
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert threading.active_count() == before


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_blocks_are_the_same_with_any_number_of_threads(
    kind: str, rows: pa.Table, tmp_path: Path
) -> None:
    url, spec = write(rows, tmp_path, kind), shop_spec()
    one, five = (
        list(TableSource([url], layout(), spec, threads).blocks(FilePosition()))
        for threads in (1, 5)
    )
    assert [each.after for each in one] == [each.after for each in five]
    assert [each.read for each in one] == [each.read for each in five]
    for a, b in zip(one, five, strict=True):
        assert (a.examples.features.ids == b.examples.features.ids).all()


def layer_thread_count(before: set[threading.Thread]) -> int:
    """Return how many threads compute the layers of the fit that calls this.

    before: the threads when it began, which may belong to a model of another test.
    """
    begun = set(threading.enumerate()) - before
    return torch.get_num_threads() + any(each.name.startswith("layers") for each in begun)


@pytest.mark.parametrize("architecture", ["deepfm", "dcn_v2"])
def test_layers_of_a_fit_use_several_threads_and_the_rows_stay_the_same(
    rows: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str
) -> None:
    model = f'architecture = "{architecture}"\ndimensions = 4\nlayers = [8]\nmini_batch = 1024\n'
    spec = parse_spec(shop_spec().text.replace("[label]", model + "[label]", 1), "shop.toml")
    url, made, threads = write(rows.slice(0, 4_000), tmp_path, "parquet"), [], []

    def note(before: set[threading.Thread], _: object) -> None:
        threads.append(layer_thread_count(before))

    for cores in (1, 2):
        monkeypatch.setattr(
            "headrace.learner.batch.trainer.available_cores", lambda cores=cores: cores
        )
        folder = FitFolder(str(tmp_path / str(cores)), spec.name)
        trainer = BatchTrainer(spec, TableSource([url], layout(), spec), folder, FitSettings())
        done = trainer.run(threading.Event(), partial(note, set(threading.enumerate())))
        assert done is not None
        made.append(InMemoryModel.load(tmp_path / str(cores), done.snapshot).rows)
        assert torch.get_num_threads() == 1  # a model that learns a stream shares its machine
    assert set(threads) == {1, 2}
    np.testing.assert_array_equal(made[0].ids, made[1].ids)
    np.testing.assert_allclose(made[0].values, made[1].values, rtol=1e-4, atol=1e-6)


def test_a_fit_counts_its_clicks_and_the_loss_before_learning(
    rows: pa.Table, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    done = fit(write(rows, tmp_path, "parquet"), tmp_path / "models", FitSettings())
    assert done is not None
    assert done.clicks == sum(rows["clicked"].to_pylist())
    rate = done.clicks / ROWS
    entropy = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))
    assert done.log_loss == pytest.approx(done.normalized_entropy * entropy)
    assert done.order.disordered == 0
    assert "order of time" not in caplog.text


def test_a_column_that_a_later_file_lacks_is_refused_with_that_file(
    rows: pa.Table, tmp_path: Path
) -> None:
    renamed = rows.rename_columns(["person" if n == "user" else n for n in rows.column_names])
    pyarrow.parquet.write_table(rows, tmp_path / "p0.parquet")
    pyarrow.parquet.write_table(renamed, tmp_path / "p1.parquet")
    head = LAYOUT.partition("[fields]")[0]
    source = TableSource([f"{tmp_path}/*.parquet"], parse_layout(head, "layout.toml"), shop_spec())
    expected = r"p1\.parquet: expected the columns of the files before, got none for user\."
    with pytest.raises(UnreadableData, match=expected):
        list(source.blocks(FilePosition()))
