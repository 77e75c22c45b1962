"""A fit of tables: what it learns, when it stops, and how it goes on after a kill."""

import json
import random
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import headrace
from headrace.ingest.events.contract import AHEAD_MS, Reason
from headrace.ingest.survey.log_survey import survey_log
from headrace.learner.batch.fit_folder import FitFolder, FitState
from headrace.learner.batch.sources import FilePosition
from headrace.learner.batch.table_source import TableSource
from headrace.learner.batch.trainer import BatchTrainer, FitSettings, FitSummary
from headrace.learner.local.in_memory_model import InMemoryModel
from headrace.pserver.rows.row_codec import FoldedRows
from headrace.pserver.snapshots.snapshot_errors import NoSnapshot
from tests.learner.batch.fitted_tables import ROWS, Tell, fit, layout, rows_of_files, stopped, write
from tests.learner.shop import BEGIN_MS, shop_rows, shop_spec

NOW_MS = BEGIN_MS + 10 * ROWS * 1000
"""The moment at which a log is read."""


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    return rows_of_files()


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
    spec = shop_spec()
    one, other = (FitFolder(str(tmp_path), name) for name in ("news", "news-2"))
    for folder in (one, other):
        older = folder.save(InMemoryModel(spec))
        folder.write(FitState(spec.fingerprint, "source", folder.save(InMemoryModel(spec))))
        with pytest.raises(NoSnapshot):
            folder.load(older, spec)
    one.restart()
    assert one.read(spec, "source") is None
    state = other.read(spec, "source")
    assert state is not None
    other.load(state.rows, spec)


@pytest.mark.parametrize("holdout", [0.0, 0.2])
def test_a_fit_stopped_anywhere_makes_the_same_rows_and_counts_each_line_once(
    holdout: float, rows: pa.Table, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Lines without a usable time, and lines after a newer one, once whatever the epochs."""
    later = rows.slice(15_000, 5_000)
    backward = later.take(pa.array(np.arange(5_000)[::-1]))
    log = pa.concat_tables([with_bad_times(rows.slice(0, 15_000), bad=2_000), later, backward])
    pyarrow.parquet.write_table(log, tmp_path / "log.parquet", row_group_size=2_500)
    settings, dice = FitSettings(epochs=2, holdout=holdout, tell_every_s=0), random.Random(7)
    runs: list[BatchTrainer] = []
    found: list[tuple[FitSummary, FoldedRows]] = []
    for stops in ([0], iter(lambda: dice.randrange(1, 4), None)):
        to = tmp_path / str(len(found))

        def run(stop: threading.Event, tell: Tell, to: Path = to) -> FitSummary | None:
            source = TableSource(
                [str(tmp_path / "log.parquet")], layout(), shop_spec(), now_ms=NOW_MS
            )
            folder = FitFolder(str(to), "shop")
            runs.append(BatchTrainer(shop_spec(), source, folder, settings))
            return runs[-1].run(stop, tell)

        done = stopped(run, stops)
        found.append((done, InMemoryModel.load(to, done.snapshot).rows))
        assert {each.reason: each.count for each in runs[-1].refusals} == dict.fromkeys(
            (Reason.NO_TIME, Reason.BEFORE_2000, Reason.AHEAD), 2_000
        )
        assert (done.order.rows, done.order.disordered) == (19_000, 4_999)
        assert done.order.furthest_ms == 4_999_000
        assert not list((to / "_fit").iterdir())
    assert len(runs) > 4
    assert "expected rows in order of time" in caplog.text
    (whole, whole_rows), (parts, parts_rows) = found
    assert (parts.examples, parts.clicks) == (whole.examples, whole.clicks)
    for one, other in zip(parts_rows, whole_rows, strict=True):
        np.testing.assert_array_equal(one, other)


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
