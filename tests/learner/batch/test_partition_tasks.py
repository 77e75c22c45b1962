"""The tasks of a distributed fit, without Spark: what they stage, learn and score."""

import pickle
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.ingest.examples.batch import unpack
from headrace.learner.batch.store_fit.partition_tasks import (
    LearnTask,
    RunSpec,
    ScoreTask,
    StageTask,
)
from headrace.learner.batch.store_fit.run_store import rows_of, run_shape
from headrace.learner.batch.store_fit.staged_file import STAGED, staged_places
from headrace.learner.local.in_memory_model import InMemoryModel
from headrace.learner.local.table_examples import TableEncoder, times_of
from tests.learner.batch.staged_files import one_store
from tests.learner.shop import CROSS, shop_examples, shop_rows, shop_spec

ROWS, SPEC = 3000, shop_spec(CROSS)
RUN = RunSpec(SPEC.text, "shop-1")


class Sent(NamedTuple):
    """A broadcast."""

    value: bytes


def one_pass() -> InMemoryModel:
    """Return the model after one pass over the rows in one process."""
    model = InMemoryModel(SPEC)
    model.learn(shop_examples(shop_rows(ROWS), SPEC))
    return model


def test_a_file_staged_and_learned_has_the_rows_of_one_pass(tmp_path: Path) -> None:
    batches = shop_rows(ROWS).to_batches(max_chunksize=700)
    table = pa.Table.from_batches(list(StageTask(RUN, "clicked")(iter(batches))), STAGED)
    assert table["rows"].to_pylist() == [700, 700, 700, 700, 200]
    pq.write_table(table, tmp_path / "part.parquet")
    (memory, connect), spec = one_store(), RUN.read()
    shape = run_shape(spec, 16)
    memory.create(shape)
    places = staged_places([str(tmp_path / "part.parquet")], "job")
    numbers = pa.RecordBatch.from_pydict({"id": [0]})
    [done] = LearnTask(RUN, places, connect)(iter([numbers]))
    assert done.to_pylist() == [{"number": 0, "rows": ROWS}]
    found, expected = rows_of(memory, shape), one_pass().rows
    assert found.ids.tolist() == expected.ids.tolist()
    assert found.shows.tolist() == expected.shows.tolist()
    assert found.clicks.tolist() == expected.clicks.tolist()
    # the store adds what each push gained, which rounds in another order
    np.testing.assert_allclose(found.values, expected.values, rtol=1e-4, atol=1e-5)


def test_scores_are_those_of_the_model() -> None:
    model, rows = one_pass(), shop_rows(500, seed=2)
    [batch] = rows.to_batches()
    columns = {name: rows[name].combine_chunks() for name in rows.column_names}
    times = times_of(columns, 500, 0)
    expected = model.predict(TableEncoder(SPEC.fields).features(columns, times), times)
    task = ScoreTask(Sent(pickle.dumps(model)), "token", ("probability", "raw", "class"))
    [scored] = task(iter([batch]))
    assert scored.schema.names == [*rows.column_names, "probability", "raw", "class"]
    found = scored.column("probability").to_numpy()
    assert found.tolist() == expected.tolist()
    raw = scored.column("raw").to_numpy()
    np.testing.assert_allclose(1.0 / (1.0 + np.exp(-raw)), expected)
    assert ((raw > 0) == (scored.column("class").to_numpy() == 1.0)).all()


def test_weights_travel_with_the_examples() -> None:
    rows = shop_rows(10).append_column("weight", pa.array(np.arange(10.0)))
    [made] = StageTask(RUN, "clicked", "weight")(iter(rows.to_batches()))
    found = unpack(made.column("examples")[0].as_py(), SPEC.fields)
    assert found.weights is not None
    assert found.weights.tolist() == list(range(10))


@pytest.mark.parametrize(
    ("column", "values", "named"),
    [
        ("clicked", [0.0, 0.5], "'clicked': expected labels 0 and 1, got 0.5"),
        ("clicked", [1.0, None], "'clicked': expected labels 0 and 1, got None"),
        ("weight", [1.0, -1.0], "'weight': expected weights from 0 up, got -1.0"),
        ("timestamp_ms", [None, 7_415_712_000_000], "at most a day ahead, got 7415712000000"),
    ],
)
def test_a_bad_label_weight_or_time_is_refused_by_name(
    column: str, values: list[float | None], named: str
) -> None:
    columns = {"user": ["a", "b"], "clicked": [0.0, 1.0], "weight": [1.0, 1.0], column: values}
    batch = pa.RecordBatch.from_pydict(columns)
    with pytest.raises(ValueError, match=named):
        list(StageTask(RUN, "clicked", "weight")(iter([batch])))
