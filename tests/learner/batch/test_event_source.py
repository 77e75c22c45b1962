"""A log of events as the source of an experiment: an event dated far ahead changes no other."""

from pathlib import Path

import orjson
import pytest

from headrace.learner.batch.event_source import EventLogSource
from headrace.learner.batch.sources import FilePosition
from tests.learner.shop import BEGIN_MS, shop_spec

ROWS, YEAR_2205_MS = 300, 7_415_712_000_000


@pytest.mark.parametrize("place", [0, 150, ROWS - 1])
def test_an_event_dated_far_ahead_makes_no_example_and_changes_no_other(
    place: int, tmp_path: Path
) -> None:
    shown = [
        {"impression_id": f"i-{i}", "timestamp_ms": BEGIN_MS + 1000 * i, "item": i % 10}
        for i in range(ROWS)
    ]
    clicks = [
        {"impression_id": f"i-{i}", "timestamp_ms": BEGIN_MS + 1000 * i + 30_000}
        for i in range(0, ROWS, 3)
        if i != place
    ]
    rest = [each for each in shown if each is not shown[place]]
    log = [*shown[:place], {**shown[place], "timestamp_ms": YEAR_2205_MS}, *shown[place + 1 :]]
    expected, found = (
        labels(written(tmp_path / name, events, clicks))
        for name, events in (("rest", rest), ("log", log))
    )
    assert len(expected) == ROWS - 1
    assert sum(label for _, label in expected) == len(clicks)
    assert found == expected


def written(folder: Path, shown: list[dict[str, object]], clicks: list[dict[str, object]]) -> Path:
    folder.mkdir()
    for name, events in (("impressions", shown), ("clicks", clicks)):
        (folder / f"{name}.ndjson").write_bytes(b"\n".join(map(orjson.dumps, events)))
    return folder


def labels(log: Path) -> list[tuple[str, int]]:
    """Return the impressions of the examples, in their order, with their labels."""
    blocks = EventLogSource([log], shop_spec()).blocks(FilePosition())
    return [
        pair
        for block in blocks
        for pair in zip(
            block.examples.impression_ids.to_pylist(), block.examples.labels.tolist(), strict=True
        )
    ]
