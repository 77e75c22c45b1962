"""The share of Kafka's examples that are not learned, by which an alert fires before retention."""

import pytest

from headrace.ingest.kafka.protocols import Source
from headrace.learner.metrics import unlearned_ratio

ONE, TWO, EMPTY = (Source("examples", partition) for partition in range(3))


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ({}, None),
        ({EMPTY: 0}, None),
        ({ONE: 200}, 0.0),
        ({ONE: 175}, 0.25),
        ({ONE: 100}, 1.0),
        ({ONE: 50}, 1.0),  # retention has taken some of it
        ({ONE: 200, TWO: 10}, 0.5),
    ],
)
def test_the_ratio_is_that_of_the_partition_nearest_to_its_retention(
    marks: dict[Source, int], expected: float | None
) -> None:
    held = {ONE: (100, 200), TWO: (0, 20), EMPTY: (0, 0)}
    assert unlearned_ratio(marks, held) == expected
