"""A fit of tables: what it learns, when it stops, and how it goes on after a kill."""

from __future__ import annotations

import json
import random
import threading
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch

import headrace
from headrace.ingest.events import AHEAD_MS, Reason
from headrace.ingest.logs import parse_layout
from headrace.ingest.survey import survey_log
from headrace.learner.batch import (
    BatchTrainer,
    FilePosition,
    FitFolder,
    FitSettings,
    TableSource,
    UnreadableData,
)
from headrace.learner.batch.fit_folder import FitState
from headrace.learner.batch.prefetch import in_order, read_ahead
from headrace.learner.local import InMemoryModel
from headrace.learner.spec import parse_spec
from tests.learner.shop import BEGIN_MS, shop_rows, shop_spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from headrace.ingest.logs import LogLayout
    from headrace.learner.batch import FitSummary

LAYOUT = """
[file]
numbers = ["price"]
[event]
timestamp = "time"
[click]
column = "clicked"
[fields]
user = "user"
item = "item"
price = "price"
tags = { column = "tags", separator = "|" }
"""
ROWS = 50_000
NAMES = ["user", "item", "price", "tags", "time", "clicked"]
NOW_MS = BEGIN_MS + 10 * ROWS * 1000
"""The moment at which a log is read."""


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    """Rows a second apart, as a file has them."""
    rows = shop_rows(ROWS).rename_columns(NAMES)
    return rows.set_column(3, "tags", pa.compute.binary_join(rows["tags"], "|"))


def layout() -> LogLayout:
    return parse_layout(LAYOUT, "layout.toml")


def write(rows: pa.Table, folder: Path, kind: str) -> str:
    """Write two files of one kind; return their pattern."""
    for place, name in enumerate("ab"):
        part = rows.slice(place * ROWS // 2, ROWS // 2)
        path = folder / f"{name}.{kind}"
        if kind == "csv":
            pyarrow.csv.write_csv(part, path)
        elif kind == "parquet":
            pyarrow.parquet.write_table(part, path)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in part.to_pylist()))
    return str(folder / f"*.{kind}")


def fit(
    url: str,
    to: Path,
    settings: FitSettings,
    stop: threading.Event | None = None,
    tell: Callable[[object], object] = lambda _: None,
) -> FitSummary | None:
    spec = shop_spec()
    source = TableSource([url], layout(), spec)
    trainer = BatchTrainer(spec, source, FitFolder(str(to), spec.name), settings)
    return trainer.run(stop or threading.Event(), tell)


@pytest.fixture(scope="module")
def wanted() -> headrace.LocalModel:
    """A model that learned all rows through the joiner."""
    model = headrace.LocalModel(shop_spec())
    model.learn(shop_rows(ROWS), label="clicked")
    model.flush()
    return model


@pytest.mark.parametrize("kind", ["csv", "parquet", "ndjson"])
def test_a_fit_makes_the_rows_that_the_joiner_and_a_model_make(
    kind: str, rows: pa.Table, wanted: headrace.LocalModel, tmp_path: Path
) -> None:
    done = fit(write(rows, tmp_path, kind), tmp_path / "models", FitSettings())
    assert done is not None
    assert done.examples == ROWS
    found = headrace.LocalModel.load(tmp_path / "models", done.snapshot)
    asked = shop_rows(ROWS).slice(0, 100)
    assert found.predict(asked).tolist() == wanted.predict(asked).tolist()
    assert len(found) == len(wanted)
    assert done.normalized_entropy == pytest.approx(wanted.metrics().normalized_entropy)


def test_fits_of_several_models_share_a_folder(tmp_path: Path) -> None:
    names = ("news", "news-2", "shop")
    text = shop_spec().text
    specs = [parse_spec(text.replace('"shop"', f'"{name}"', 1), "shop.toml") for name in names]
    folders = [FitFolder(str(tmp_path), name) for name in names]
    for folder, spec in zip(folders, specs, strict=True):
        rows = folder.save(InMemoryModel(spec))
        folder.write(FitState(spec.fingerprint, "source", folder.save(InMemoryModel(spec))))
        assert not (tmp_path / "_fit" / rows).exists(), "nothing names these rows"
    folders[0].restart()
    assert folders[0].read(specs[0], "source") is None
    for folder, spec in zip(folders[1:], specs[1:], strict=True):
        state = folder.read(spec, "source")
        assert state is not None
        folder.load(state.rows, spec)


@pytest.mark.thorough
@pytest.mark.parametrize("holdout", [0.0, 0.2])
def test_a_fit_that_is_stopped_anywhere_ends_with_the_same_model(
    holdout: float, rows: pa.Table, tmp_path: Path
) -> None:
    url, dice = write(rows, tmp_path, "parquet"), random.Random(7)
    settings = FitSettings(epochs=2, holdout=holdout, tell_every_s=0)
    whole = fit(url, tmp_path / "whole", settings)
    parts, runs = None, 0
    while parts is None:
        stop, left = threading.Event(), dice.randrange(1, 3)

        def tell(_: object) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                stop.set()  # noqa: B023 - called before the next round

        parts = fit(url, tmp_path / "parts", settings, stop, tell)
        runs += 1
    assert whole is not None
    assert runs > 2
    assert parts.examples == whole.examples
    asked = rows.slice(0, 500).rename_columns(
        ["user", "item", "price", "words", "timestamp_ms", "clicked"]
    )
    scores = [
        headrace.LocalModel.load(tmp_path / folder, done.snapshot).predict(asked).tolist()
        for folder, done in (("whole", whole), ("parts", parts))
    ]
    assert scores[0] == scores[1]
    assert not [path for path in (tmp_path / "parts" / "_fit").iterdir() if path.is_dir()]


def test_epochs_stop_when_the_held_out_loss_no_longer_falls(tmp_path: Path) -> None:
    dice = np.random.default_rng(3)
    # ids of one row each: a second epoch learns noise by heart
    noise = pa.table(
        {
            "user": pa.array([f"u{i % 9_000}" for i in range(20_000)]),
            "item": pa.array(dice.integers(0, 10, 20_000)),
            "price": pa.array(dice.random(20_000)),
            "tags": pa.array(["t"] * 20_000),
            "time": pa.array(1_700_000_000_000 + 1000 * np.arange(20_000)),
            "clicked": pa.array((dice.random(20_000) < 0.3).astype(int)),
        }
    )
    pyarrow.parquet.write_table(noise, tmp_path / "noise.parquet", row_group_size=1000)
    settings = FitSettings(epochs=20, holdout=0.2)
    done = fit(str(tmp_path / "noise.parquet"), tmp_path / "models", settings)
    assert done is not None
    assert 0 < done.epochs < 20
    assert done.held_out_loss is not None
    # each epoch up to the first without a better loss learns 16,000 rows, the end 4,000
    assert done.examples == 16_000 * (done.epochs + 1) + 4_000


def with_bad_times(rows: pa.Table, *, bad: int = 1) -> pa.Table:
    """Return rows of which some have no time, a time in seconds, or one far ahead."""
    times = rows["time"].to_pylist()
    for place in range(bad):
        times[3 * place + 3] = None
        times[3 * place + 4] = times[3 * place + 4] // 1000
        times[3 * place + 5] = NOW_MS + AHEAD_MS + 1 + place
    return rows.set_column(rows.schema.get_field_index("time"), "time", pa.array(times))


@pytest.mark.parametrize("kind", ["csv", "parquet", "ndjson"])
def test_lines_without_a_usable_time_are_refused_with_reason_count_and_example(
    kind: str, rows: pa.Table, tmp_path: Path
) -> None:
    log = with_bad_times(rows)
    last = log["time"].to_pylist()
    last[-1] = NOW_MS + AHEAD_MS  # a day ahead, and no more
    url = write(log.set_column(4, "time", pa.array(last)), tmp_path, kind)
    blocks = list(TableSource([url], layout(), shop_spec(), now_ms=NOW_MS).blocks(FilePosition()))
    assert sum(len(block.examples) for block in blocks) == ROWS - 3
    refusals = {each.reason: each for block in blocks for each in block.refusals}
    assert {reason: each.count for reason, each in refusals.items()} == {
        Reason.NO_TIME: 1,
        Reason.BEFORE_2000: 1,
        Reason.AHEAD: 1,
    }
    place = {"csv": "line 7", "ndjson": "line 6", "parquet": "row 6"}[kind]
    assert refusals[Reason.AHEAD].place == f"{tmp_path}/a.{kind}, {place}"
    assert f"time={NOW_MS + AHEAD_MS + 1}" in refusals[Reason.AHEAD].example.replace("'", "")
    assert "looks like seconds" in refusals[Reason.BEFORE_2000].details
    found = survey_log(tmp_path / f"a.{kind}", shop_spec().fields, layout(), now_ms=NOW_MS)
    assert {each.reason: each for each in found.refused} == refusals, "as a check reports them"


def test_lines_that_are_no_rows_are_refused_with_their_text(rows: pa.Table, tmp_path: Path) -> None:
    lines = [json.dumps(row) for row in rows.slice(0, 3).to_pylist()]
    (tmp_path / "log.ndjson").write_text("\n".join([*lines[:2], '{"user": "u1"', lines[2]]))
    source = TableSource([str(tmp_path / "log.ndjson")], layout(), shop_spec())
    blocks = list(source.blocks(FilePosition()))
    assert [len(block.examples) for block in blocks] == [2, 0, 1]
    [refused] = [each for block in blocks for each in block.refusals]
    assert (refused.reason, refused.count) == (Reason.NOT_JSON, 1)
    assert refused.place == f"{tmp_path}/log.ndjson, line 3"
    assert refused.example == '{"user": "u1"'


@pytest.mark.parametrize("holdout", [0.0, 0.2])
def test_a_fit_counts_each_refused_line_once_whatever_its_epochs_and_stops(
    holdout: float, rows: pa.Table, tmp_path: Path
) -> None:
    log = with_bad_times(rows, bad=2000)
    pyarrow.parquet.write_table(log, tmp_path / "log.parquet", row_group_size=5000)
    settings = FitSettings(epochs=2, holdout=holdout, tell_every_s=0)
    refusals, done, dice = None, None, random.Random(5)
    while done is None:
        stop, left = threading.Event(), dice.randrange(1, 4)

        def tell(_: object) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                stop.set()  # noqa: B023 - called before the next round

        source = TableSource([str(tmp_path / "log.parquet")], layout(), shop_spec(), now_ms=NOW_MS)
        folder = FitFolder(str(tmp_path / "models"), "shop")
        trainer = BatchTrainer(shop_spec(), source, folder, settings)
        done, refusals = trainer.run(stop, tell), trainer.refusals
    assert refusals is not None
    assert {each.reason: each.count for each in refusals} == dict.fromkeys(
        (Reason.NO_TIME, Reason.BEFORE_2000, Reason.AHEAD), 2000
    )


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


@pytest.mark.parametrize("holdout", [0.0, 0.2])
def test_a_fit_counts_rows_out_of_order_once_whatever_its_epochs_and_stops(
    holdout: float, rows: pa.Table, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = rows.slice(0, 10_000)
    backward = log.take(pa.array(np.arange(10_000)[::-1]))
    pyarrow.parquet.write_table(pa.concat_tables([log, backward]), tmp_path / "log.parquet")
    settings = FitSettings(epochs=2, holdout=holdout, save_every_s=0, tell_every_s=0)
    done, stops = None, 0
    while done is None:
        stop = threading.Event()
        if stops < 2:
            stop.set()  # after the first block of each process
        done = fit(str(tmp_path / "log.parquet"), tmp_path / "models", settings, stop)
        stops += 1
    assert stops == 3
    times = log["time"].to_pylist()
    assert (done.order.rows, done.order.disordered) == (20_000, 9_999)
    assert done.order.furthest_ms == times[-1] - times[0]
    assert "expected rows in order of time" in caplog.text


def test_a_fit_counts_its_clicks_and_the_loss_before_learning(
    rows: pa.Table, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    done = fit(write(rows, tmp_path, "parquet"), tmp_path / "models", FitSettings())
    assert done is not None
    assert done.clicks is not None
    assert done.clicks == sum(rows["clicked"].to_pylist())
    rate = done.clicks / ROWS
    entropy = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))
    assert done.log_loss == pytest.approx(done.normalized_entropy * entropy)
    assert done.order.disordered == 0
    assert "order of time" not in caplog.text
