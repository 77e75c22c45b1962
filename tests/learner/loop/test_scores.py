"""The codec of scores: round trips, and refusal of other bytes."""

import numpy as np
import pyarrow as pa
import pytest

from headrace.learner.loop.scores import Scores, UnreadableScores, pack, unpack


def test_a_batch_of_scores_survives_a_round_trip() -> None:
    scores = Scores(
        pa.array(["a", "é", ""], pa.string()),
        pa.array(["r", None, "r"], pa.string()),
        np.array([1, 2, 3], np.int64),
        np.array([0.25, 0.5, 1e-9]),
    )
    found = unpack(pack(scores))
    assert len(found) == 3
    assert found.impression_ids.to_pylist() == ["a", "é", ""]
    assert found.request_ids.to_pylist() == ["r", None, "r"]
    np.testing.assert_array_equal(found.event_ms, scores.event_ms)
    np.testing.assert_array_equal(found.scores, scores.scores)


def test_a_part_of_a_longer_column_is_packed_alone_and_may_be_empty() -> None:
    ids = pa.array([f"i{i}" for i in range(100)], pa.string())
    for count in (2, 0):
        own = ids.slice(40, count), pa.nulls(count, pa.string())
        scores = Scores(*own, np.zeros(count, np.int64), np.zeros(count))
        assert unpack(pack(scores)).impression_ids.to_pylist() == ["i40", "i41"][:count]


def test_another_table_is_refused() -> None:
    sink = pa.BufferOutputStream()
    table = pa.table({"other": [1]})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(UnreadableScores, match="expected"):
        unpack(bytes(sink.getvalue()))
