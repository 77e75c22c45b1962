"""A log as live traffic: times of now at any pace, ids of its own in each pass."""

import itertools
import json
from pathlib import Path

from headrace.ingest.logs.ndjson import DirectoryLog
from headrace.ingest.replay.live_log import LiveLog, LivePace
from tests.ingest.logs.event_directories import clicked, shown, write_directory

NOW_MS = 1_900_000_000_000


def test_the_events_of_a_log_happen_now_at_a_multiple_of_their_pace(tmp_path: Path) -> None:
    log = DirectoryLog(
        write_directory(tmp_path / "log", [shown(i) for i in range(50)], [clicked(7)])
    )
    before = list(log.lines())
    after = list(LiveLog(log, LivePace(4.0), lambda: NOW_MS).lines())
    first_ms = before[0].time_ms
    assert [each.time_ms for each in after] == [
        NOW_MS + (each.time_ms - first_ms) // 4 for each in before
    ]
    for old, new in zip(before, after, strict=True):
        event, was = json.loads(new.value), json.loads(old.value)
        assert event["timestamp_ms"] == new.time_ms
        assert event["impression_id"].startswith(was["impression_id"] + "~")
        assert new.key == event["impression_id"].encode()
        assert event.keys() == was.keys()
    click = next(each for each in after if each.is_click)
    assert click.key in {each.key for each in after if not each.is_click}


def test_each_pass_of_a_repeated_log_has_other_ids_and_later_times(tmp_path: Path) -> None:
    log = DirectoryLog(write_directory(tmp_path / "log", [shown(i) for i in range(10)], []))
    lines = LiveLog(log, LivePace(1.0, repeat=True), lambda: NOW_MS).lines()
    found = list(itertools.islice(lines, 25))
    assert len({each.key for each in found}) == 25
    times = [each.time_ms for each in found]
    assert times == sorted(times)
    assert times[10] > times[9]


def test_a_repeated_log_without_valid_times_ends(tmp_path: Path) -> None:
    log = DirectoryLog(write_directory(tmp_path / "log", [], []))
    assert list(LiveLog(log, LivePace(1.0, repeat=True), lambda: NOW_MS).lines()) == []


def test_malformed_lines_and_invalid_times_stay_as_they_are(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "log", [shown(0)], [])
    bad = [b"{broken", b'{"impression_id": "a", "timestamp_ms": "soon"}', b"[1]"]
    with (directory / "impressions.ndjson").open("ab") as file:
        file.writelines(line + b"\n" for line in bad)
    lines = list(LiveLog(DirectoryLog(directory), LivePace(1.0), lambda: NOW_MS).lines())
    assert [each.value for each in lines[1:]] == bad
