"""The lag of a reading process: the records beyond its positions."""

from collections.abc import Iterable, Mapping

from headrace.ingest.errors import KafkaUnreachable
from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.reading.read_lag import ReadLag
from headrace.runtime.health import ProcessHealth

FIRST, SECOND = Source("t", 0), Source("t", 1)
Bounds = Mapping[Source, tuple[int, int]]


def values(lag: ReadLag) -> list[float]:
    return [sample.value for metric in lag.collect() for sample in metric.samples]


def test_the_lag_is_the_number_of_records_beyond_the_positions_of_all_sources() -> None:
    lag = ReadLag("lag", {"model": "m"})
    assert values(lag) == [] and not lag.behind()
    ends = {FIRST: (0, 10), SECOND: (3, 7)}
    positions = {FIRST: 4}
    lag.follow(lambda sources: {each: ends[each] for each in sources}, lambda: positions)
    assert values(lag) == [] and not lag.behind()  # not asked yet
    lag.refresh()
    assert values(lag) == [6]
    positions[SECOND] = 8  # an end from before the last record
    assert values(lag) == [6] and lag.behind()
    lag.refresh()
    assert values(lag) == [6] and lag.behind()
    positions[FIRST] = 10
    assert values(lag) == [0] and not lag.behind()


def test_the_bounds_of_further_sources_are_known_without_counting_as_lag() -> None:
    lag = ReadLag("lag")
    lag.follow(lambda sources: dict.fromkeys(sources, (0, 5)), lambda: {FIRST: 3}, [SECOND])
    assert lag.known() == {}
    lag.refresh()
    assert lag.known() == {FIRST: (0, 5), SECOND: (0, 5)}
    assert values(lag) == [2]


def test_the_lag_is_absent_while_kafka_does_not_answer() -> None:
    answers: list[Bounds | KafkaUnreachable] = [{FIRST: (0, 5)}, KafkaUnreachable("away")]

    def ask(_: Iterable[Source]) -> Bounds:
        answer = answers.pop(0)
        if isinstance(answer, KafkaUnreachable):
            raise answer
        return answer

    lag = ReadLag("lag")
    lag.follow(ask, lambda: {FIRST: 1})
    lag.refresh()
    assert values(lag) == [4]
    lag.refresh()
    assert values(lag) == [] and not lag.behind()


def test_an_answer_is_forgotten_when_the_next_one_does_not_come() -> None:
    now = [0.0]
    lag = ReadLag("lag", steady_s=lambda: now[0])
    lag.follow(lambda _: {FIRST: (0, 5)}, lambda: {FIRST: 1})
    lag.refresh()
    now[0] = 59.0
    assert values(lag) == [4]
    now[0] = 60.0
    assert values(lag) == [] and not lag.behind()


def test_a_process_that_reads_nothing_of_a_backlog_is_not_live() -> None:
    now, positions, lag = [0.0], {FIRST: 0}, ReadLag("lag")
    lag.follow(lambda _: {FIRST: (0, 5)}, lambda: positions)
    lag.refresh()
    health = ProcessHealth(10.0, lambda: now[0])
    health.watch(lag.progress, lag.behind)
    for second in range(30):
        now[0] = float(second)
        health.stepped()
        if second == 8:
            positions[FIRST] = 4
        stalled = second > 18
        assert ("no progress" in health.why_not_live()) is stalled
    positions[FIRST] = 5
    assert health.why_not_live() == ""
