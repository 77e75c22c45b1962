"""Tests the sorting of logs, in memory and on disk."""

import json
import random
from pathlib import Path

import pytest

from headrace.ingest.logs.ndjson import DirectoryLog
from headrace.ingest.logs.opening import SortedLog
from tests.ingest.logs.event_directories import START_MS, clicked, shown, write_directory

COUNT = 500


@pytest.mark.parametrize("memory_kib", [1 << 18, 16])
def test_a_shuffled_log_comes_sorted_with_every_line(tmp_path: Path, memory_kib: int) -> None:
    order = list(range(COUNT))
    random.Random(1).shuffle(order)
    directory = write_directory(
        tmp_path / "log", [shown(i) for i in order], [clicked(i) for i in order[:50]]
    )
    log = SortedLog(DirectoryLog(directory), memory_kib)
    lines = list(log.lines())
    times = [json.loads(line.value)["timestamp_ms"] for line in lines]
    assert times == sorted(times) == [line.time_ms for line in lines]
    assert len(lines) == COUNT + 50
    assert {line.value for line in lines if line.is_click} == {clicked(i) for i in order[:50]}
    assert lines == list(log.lines()), "a second reading gives the same lines"


def test_lines_without_a_valid_time_stay_behind_their_predecessor(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "log", [shown(2), b"not json", shown(1)], [])
    values = [line.value for line in SortedLog(DirectoryLog(directory)).lines()]
    assert values == [shown(1), shown(2), b"not json"]
    assert json.loads(values[0])["timestamp_ms"] == START_MS + 10


@pytest.mark.parametrize("unusable", [START_MS // 1000, START_MS * 1000, 32_503_680_000_000])
def test_a_time_that_the_joiner_refuses_is_the_time_of_no_line(
    tmp_path: Path, unusable: int
) -> None:
    """Seconds, microseconds, the year 3000: the progress of a replay cannot show such a time."""
    wrong = json.dumps({"impression_id": "wrong", "timestamp_ms": unusable}).encode()
    directory = write_directory(tmp_path / "log", [shown(1), wrong, shown(2)], [])
    lines = list(DirectoryLog(directory).lines())
    assert [line.value for line in lines] == [shown(1), wrong, shown(2)]
    assert [line.time_ms - START_MS for line in lines] == [10, 10, 20]
