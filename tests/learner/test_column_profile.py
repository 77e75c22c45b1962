"""Column profiles: the values and the name of a column decide how a model reads it."""

import pyarrow as pa
import pytest

from headrace.learner.suggestion.column_profile import profile_of


@pytest.mark.parametrize("name", ["listener.id", "listener_id", "listenerId", "episode.ID", "id"])
def test_whole_numbers_of_a_column_named_like_an_id_are_ids(name: str) -> None:
    numbers = pa.array([i % 500 for i in range(5000)])
    assert profile_of(name, numbers).transform == "id"


@pytest.mark.parametrize("name", ["seconds", "paid", "Bid", "episode.seconds", "humidity"])
def test_whole_numbers_of_any_other_column_are_numbers_in_buckets(name: str) -> None:
    numbers = pa.array([i % 500 for i in range(5000)])
    assert profile_of(name, numbers).transform == "log_bucket"
