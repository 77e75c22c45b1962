"""Metrics of the store behind a keeper."""

from headrace.pserver.inspection.nodes import NodeMemory
from headrace.pserver.keeper.store_collectors import (
    LISTED_EVERY_S,
    NewestSnapshotCollector,
    StoreMemoryCollector,
)
from headrace.pserver.snapshots.snapshot_errors import StorageFailed


def _values(
    collector: StoreMemoryCollector | NewestSnapshotCollector,
) -> dict[tuple[str, ...], float]:
    collector.refresh()
    return {
        (sample.name.removeprefix("headrace_keeper_"), *sample.labels.values()): sample.value
        for metric in collector.collect()
        for sample in metric.samples
    }


def test_the_memory_of_each_server_is_reported_with_its_limit() -> None:
    nodes = [NodeMemory("a:1", 10, 100), NodeMemory("b:2", 20, 200)]
    assert _values(StoreMemoryCollector("m", lambda: nodes)) == {
        ("store_memory_bytes", "m", "a:1"): 10,
        ("store_memory_limit_bytes", "m", "a:1"): 100,
        ("store_memory_bytes", "m", "b:2"): 20,
        ("store_memory_limit_bytes", "m", "b:2"): 200,
    }


def test_snapshots_are_listed_once_a_minute_and_a_failure_reports_no_age() -> None:
    found: list[int | StorageFailed] = [0, 5_000, StorageFailed("no access"), 7_000]
    now_s = [0.0]

    def newest_ms() -> int:
        value = found.pop(0)
        if isinstance(value, StorageFailed):
            raise value
        return value

    collector = NewestSnapshotCollector("m", newest_ms, lambda: now_s[0])
    name = ("snapshot_timestamp_seconds", "m")
    assert _values(collector) == {name: 0}
    now_s[0] += LISTED_EVERY_S - 1
    assert _values(collector) == {name: 0}
    now_s[0] += 1
    assert _values(collector) == {name: 5}
    now_s[0] += LISTED_EVERY_S
    assert _values(collector) == {}
    now_s[0] += LISTED_EVERY_S
    assert _values(collector) == {name: 7}


def test_a_scrape_asks_no_server() -> None:
    asked: list[str] = []

    def memory_of() -> list[NodeMemory]:
        asked.append("memory")
        return []

    def newest_ms() -> int:
        asked.append("snapshots")
        return 0

    memory = StoreMemoryCollector("m", memory_of)
    snapshot = NewestSnapshotCollector("m", newest_ms)
    for collector in (memory, snapshot):
        assert [sample for metric in collector.collect() for sample in metric.samples] == []
    assert asked == []
    memory.refresh()
    snapshot.refresh()
    assert asked == ["memory", "snapshots"]
